"""Single layers of a model, and how much training changed them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from polyfed.training.precision import double

KINDS = {"conv": 4, "linear": 2, "depthwise": 4}  # kinds of layers that are shared, with the dimensions of a weight
EPSILON = 1e-12  # smallest mean square that a change is divided by: a layer may be all zeros before training


@dataclass(frozen=True)
class Layer:
    """A layer with its weights: y = W x + b, at every position of a feature map."""

    name: str
    kind: str
    index: int  # position among the shared layers of its model, from 0
    depth: float  # relative position among the layers of its kind: 0 is the first, or the only one; 1 is the last
    weight: Tensor
    bias: Tensor | None = None
    change: float = 0.0  # relative change by training (Eq. 2)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.weight,) if self.bias is None else (self.weight, self.bias)

    def clone(self) -> Layer:
        """Return a copy that shares no memory with this layer."""
        return self._map(lambda tensor: tensor.clone())

    def to_meta(self) -> Layer:
        """Return the same layer with shapes only, without its values."""
        return self._map(lambda tensor: torch.empty_like(tensor, device="meta"))

    def _map(self, function: Callable[[Tensor], Tensor]) -> Layer:
        bias = None if self.bias is None else function(self.bias)
        return dataclasses.replace(self, weight=function(self.weight), bias=bias)


def layer_kind(module: nn.Module) -> str | None:
    """Return the kind of a module, or None for grouped convolutions, norms and other modules that are not shared."""
    if isinstance(module, nn.Linear):
        return "linear"
    if isinstance(module, nn.Conv2d) and module.groups == 1:
        return "conv"
    if isinstance(module, nn.Conv2d) and module.groups == module.in_channels == module.out_channels:
        return "depthwise"
    return None


def find_layers(model: nn.Module, kinds: Collection[str], exclude: nn.Module | None = None) -> list[Layer]:
    """Return the layers of the given kinds in the model's order, without those inside `exclude`.

    The tensors of the layers share memory with the model.
    """
    excluded = set() if exclude is None else set(exclude.modules())
    modules = [
        (name, kind, module)
        for name, module in model.named_modules()
        if (kind := layer_kind(module)) in kinds and kind is not None and module not in excluded
    ]
    names_by_kind = {kind: [name for name, other, _ in modules if other == kind] for kind in kinds}
    return [
        Layer(
            name,
            kind,
            index,
            names_by_kind[kind].index(name) / max(1, len(names_by_kind[kind]) - 1),
            module.get_parameter("weight").detach(),
            None if module.bias is None else module.get_parameter("bias").detach(),
        )
        for index, (name, kind, module) in enumerate(modules)
    ]


def with_change(now: Layer, before: Layer) -> Layer:
    """Return the layer with its relative change |now - before|^2 / |before|^2 (Eq. 2); -inf if it is not finite."""
    pairs = [(double(new), double(old)) for new, old in zip(now.tensors, before.tensors, strict=True)]
    difference = float(sum((new - old).square().sum() for new, old in pairs))
    norm = float(sum(old.square().sum() for _, old in pairs))
    smallest = EPSILON * sum(old.numel() for _, old in pairs)
    change = difference / max(norm, smallest) if math.isfinite(difference) else -math.inf
    return dataclasses.replace(now, change=change)


def most_changed(layers: Sequence[Layer], k: int) -> list[Layer]:
    """Return at most k layers, the most changed first. Of two equal changes the earlier layer comes first."""
    return sorted(layers, key=lambda layer: (-layer.change, layer.index))[:k]


def random_layers(layers: Sequence[Layer], k: int, generator: torch.Generator) -> list[Layer]:
    """Return at most k layers in random order."""
    order = torch.randperm(len(layers), generator=generator)
    return [layers[i] for i in order[:k].tolist()]
