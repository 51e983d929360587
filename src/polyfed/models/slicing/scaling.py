"""HeteroFL's scaler: rescales the activations of a narrow slice to the magnitude of the full model's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from polyfed.models.slicing.layout import classifier_tensors
from polyfed.models.split import SplitModel

LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)


@contextmanager
def divided(model: SplitModel, rate: float) -> Iterator[None]:
    """Divide the output of every layer except the classifier by `rate` inside the context.

    The division comes before each norm, as in HeteroFL. It uses forward hooks on convolutions and linear layers, so
    module names do not change, and removes the hooks on exit.
    """
    if rate == 1:
        yield
        return
    classifiers = {name.rpartition(".")[0] for name in classifier_tensors(model)}
    hooks = [
        part.register_forward_hook(lambda layer, inputs, output: _divide(output, rate))
        for name, part in model.named_modules()
        if isinstance(part, LAYERS) and name not in classifiers
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _divide(output: Tensor, rate: float) -> Tensor:
    return output / rate
