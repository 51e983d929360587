"""Where the parts of a model that slicing methods speak of are: its stages, their blocks, its classifier rows."""

from __future__ import annotations

from torch import nn

from polyfed.errors import InputError
from polyfed.models.slicing.exits import EarlyExits
from polyfed.models.split import SplitModel


def block_names(model: SplitModel) -> tuple[tuple[str, ...], ...]:
    """For every stage the names of its blocks, in the order of the forward pass; a transformer is one stage.

    A tensor of block "backbone.trunk.stages.0.1" has a name that begins with it and a dot.
    """
    names = {id(module): name for name, module in model.named_modules()}
    trunk = getattr(model.backbone, "trunk", None)
    stages = getattr(trunk, "stages", None)
    if isinstance(stages, nn.ModuleList):
        return tuple(tuple(names[id(block)] for block in stage.children()) for stage in stages)
    blocks = getattr(trunk, "blocks", None)
    if isinstance(blocks, nn.Sequential):
        return (tuple(names[id(block)] for block in blocks),)
    raise InputError(
        f"A model with the trunk {type(trunk).__name__} has no stages or blocks to slice its depth by; "
        "allowed are trunks with stages, such as the ResNets', and with blocks, such as the transformers'."
    )


def classifier_tensors(model: SplitModel) -> tuple[str, ...]:
    """The tensors whose rows are classes: those of the last linear layer, for early exits of each exit's."""
    heads = list(model.head.named_children()) if isinstance(model, EarlyExits) else [("", model.head)]
    found: list[str] = []
    for prefix, head in heads:
        linears = [(name, part) for name, part in head.named_modules() if isinstance(part, nn.Linear)]
        if not linears:
            raise InputError(f"The head is a {type(head).__name__} without a linear layer, one is needed.")
        name, last = linears[-1]
        found += [".".join(p for p in ("head", prefix, name, tensor) if p) for tensor, _ in last.named_parameters()]
    return tuple(found)
