"""What comes out of a model after each of its stages: for comparing models, not for training them."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from polyfed.errors import InputError
from polyfed.models.slicing.layout import block_names
from polyfed.models.split import SplitModel

FEATURES = "features"


@torch.no_grad()
def stage_outputs(model: SplitModel, x: Tensor) -> dict[str, Tensor]:
    """The output after every stage (of a transformer: every block) and the features, one flat row for each image.

    By name: "stage 1", ... of a model of stages, "block 1", ... of one of blocks, then "features", which all have.
    The model stays in the mode it is in.
    """
    found: dict[str, Tensor] = {}
    modules = dict(model.named_modules())
    handles = [
        modules[module].register_forward_hook(partial(_note, found, name)) for name, module in _places(model).items()
    ]
    try:
        found[FEATURES] = model.features(x).flatten(1)
    finally:
        for handle in handles:
            handle.remove()
    return found


def _note(found: dict[str, Tensor], name: str, module: nn.Module, inputs: object, output: Tensor) -> None:
    found[name] = output.flatten(1)


def _places(model: SplitModel) -> dict[str, str]:
    """The modules whose outputs are wanted, by what they are called."""
    try:
        stages = block_names(model)
    except InputError:  # it has neither
        return {}
    if len(stages) == 1:
        return {f"block {k}": block for k, block in enumerate(stages[0], 1)}
    return {f"stage {k}": blocks[-1] for k, blocks in enumerate(stages, 1)}
