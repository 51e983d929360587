"""Intermediate outputs of a model after each stage, for comparing models."""

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
    """Return the output of every stage and the features, flattened to one row per sample.

    Keys are "stage 1", "stage 2", ..., or "block 1", "block 2", ... if the model has one stage (as transformers do),
    and "features". The training mode of the model does not change.
    """
    outputs: dict[str, Tensor] = {}
    modules = dict(model.named_modules())
    handles = [
        modules[module].register_forward_hook(partial(_record_output, outputs, name))
        for name, module in _recorded_modules(model).items()
    ]
    try:
        outputs[FEATURES] = model.features(x).flatten(1)
    finally:
        for handle in handles:
            handle.remove()
    return outputs


def _record_output(outputs: dict[str, Tensor], name: str, module: nn.Module, inputs: object, output: Tensor) -> None:
    outputs[name] = output.flatten(1)


def _recorded_modules(model: SplitModel) -> dict[str, str]:
    """Return the names of the modules to record, by output name."""
    try:
        stages = block_names(model)
    except InputError:  # the model has no stages or blocks
        return {}
    if len(stages) == 1:
        return {f"block {k}": block for k, block in enumerate(stages[0], 1)}
    return {f"stage {k}": blocks[-1] for k, blocks in enumerate(stages, 1)}
