"""Names of the blocks of a model and of its classifier tensors, as slicing methods need them."""

from __future__ import annotations

from torch import nn

from polyfed.errors import InputError
from polyfed.models.slicing.exits import EarlyExits
from polyfed.models.split import SplitModel


def block_names(model: SplitModel) -> tuple[tuple[str, ...], ...]:
    """Return the names of the blocks of every stage, in the order of the forward pass. A transformer is one stage.

    Tensor names of block "backbone.trunk.stages.0.1" start with "backbone.trunk.stages.0.1.".
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
        f"A model with the trunk {type(trunk).__name__} has no stages or blocks, so it cannot be sliced by depth. "
        "Use a trunk with stages, such as a ResNet, or with blocks, such as a transformer."
    )


def classifier_tensors(model: SplitModel) -> tuple[str, ...]:
    """Return the tensors of the last linear layer, or of each exit's last linear layer. Their rows are classes."""
    heads = list(model.head.named_children()) if isinstance(model, EarlyExits) else [("", model.head)]
    tensors: list[str] = []
    for prefix, head in heads:
        linears = [(name, part) for name, part in head.named_modules() if isinstance(part, nn.Linear)]
        if not linears:
            raise InputError(f"The head is a {type(head).__name__} without a linear layer; at least one is needed.")
        name, last = linears[-1]
        tensors += [".".join(p for p in ("head", prefix, name, tensor) if p) for tensor, _ in last.named_parameters()]
    return tuple(tensors)
