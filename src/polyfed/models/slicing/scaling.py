"""HeteroFL's scaler: what a narrow slice computes, brought to the size that the whole model's layers would give."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from polyfed.models.slicing.layout import classifier_tensors
from polyfed.models.split import SplitModel

LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)


@contextmanager
def divided(model: SplitModel, rate: float) -> Iterator[None]:
    """While it lasts, the output of every layer but the classifier is divided by the rate; nothing stays behind.

    That is before each norm, as HeteroFL has it: layers are found by what they are, and no name changes.
    """
    if rate == 1:
        yield
        return
    classifiers = {name.rpartition(".")[0] for name in classifier_tensors(model)}
    hooks = [
        part.register_forward_hook(lambda layer, inputs, output: _over(output, rate))
        for name, part in model.named_modules()
        if isinstance(part, LAYERS) and name not in classifiers
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _over(output: Tensor, rate: float) -> Tensor:
    return output / rate
