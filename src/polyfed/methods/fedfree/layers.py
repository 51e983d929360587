"""Single layers of a model: their kind and place, how far training moved them, and how much their weights vary."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

KINDS = {"conv": 4, "linear": 2, "depthwise": 4}  # what can be compared between models, with the weight's dimensions
LEAST_SQUARE = 1e-12  # per number, of what a change is divided by: a layer may have been all zeros

Entropy = Literal["shannon", "tsallis", "collision"]


@dataclass(frozen=True)
class Layer:
    """A layer with its weights: y = W x + b, at every position of a map."""

    name: str
    kind: str
    place: int  # among the layers of these kinds in its model, from 0
    depth: float  # its rank among the layers of its own kind, from 0 (first, or the only one) to 1 (last)
    weight: Tensor
    bias: Tensor | None = None
    change: float = 0.0  # by training, relative to what it was before

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.weight,) if self.bias is None else (self.weight, self.bias)

    def copied(self) -> Layer:
        """The same with memory of its own."""
        return self._with(lambda tensor: tensor.clone())

    def outline(self) -> Layer:
        """The same without its numbers: shapes only."""
        return self._with(lambda tensor: torch.empty_like(tensor, device="meta"))

    def _with(self, change: Callable[[Tensor], Tensor]) -> Layer:
        bias = None if self.bias is None else change(self.bias)
        return dataclasses.replace(self, weight=change(self.weight), bias=bias)


def kind_of(module: nn.Module) -> str | None:
    """What a module is compared with: grouped convolutions, norms and all else are no kind of their own."""
    if isinstance(module, nn.Linear):
        return "linear"
    if isinstance(module, nn.Conv2d) and module.groups == 1:
        return "conv"
    if isinstance(module, nn.Conv2d) and module.groups == module.in_channels == module.out_channels:
        return "depthwise"
    return None


def layers_of(model: nn.Module, kinds: Collection[str], without: nn.Module | None = None) -> list[Layer]:
    """The layers of some kinds, in the model's order, sharing memory with it; those inside of `without` left out."""
    left_out = set() if without is None else set(without.modules())
    found = [
        (name, kind, module)
        for name, module in model.named_modules()
        if (kind := kind_of(module)) in kinds and kind is not None and module not in left_out
    ]
    of_kind = {kind: [name for name, other, _ in found if other == kind] for kind in kinds}
    return [
        Layer(
            name,
            kind,
            place,
            of_kind[kind].index(name) / max(1, len(of_kind[kind]) - 1),
            module.get_parameter("weight").detach(),
            None if module.bias is None else module.get_parameter("bias").detach(),
        )
        for place, (name, kind, module) in enumerate(found)
    ]


def with_change(now: Layer, before: Layer) -> Layer:
    """A layer with how far it moved: |now - before|^2 / |before|^2 over weight and bias; -inf if it is not finite."""
    pairs = [(new.double(), old.double()) for new, old in zip(now.tensors, before.tensors, strict=True)]
    moved = float(sum((new - old).square().sum() for new, old in pairs))
    held = float(sum(old.square().sum() for _, old in pairs))
    least = LEAST_SQUARE * sum(old.numel() for _, old in pairs)
    return dataclasses.replace(now, change=moved / max(held, least) if math.isfinite(moved) else -math.inf)


def most_changed(layers: Sequence[Layer], k: int) -> list[Layer]:
    """The k layers that changed most, at most; the earlier one where two changed alike."""
    return sorted(layers, key=lambda layer: (-layer.change, layer.place))[:k]


def weight_entropy(weight: Tensor, kind: Entropy = "shannon", *, bins: int = 256, q: float = 2.0) -> float:
    """How evenly the numbers of a tensor fill `bins` equal bins between its least and its largest.

    Shannon: -sum p log2 p. Collision: -log2 sum p^2. Tsallis: (1 - sum p^q) / (q - 1). Without spread it is 0.
    """
    values = weight.detach().reshape(-1).to(torch.float64, copy=True)
    if not values.numel():
        return 0.0
    low, high = values.aminmax()
    span = float(high - low)
    if not span > 0:
        return 0.0
    # in place: for layers of a few thousand numbers the operations themselves are what costs
    bin_of = values.sub_(low).div_(span).mul_(bins).long().clamp_(max=bins - 1)  # the largest belongs to the last
    p = torch.bincount(bin_of, minlength=bins).double() / values.numel()
    if kind == "shannon":
        return float(-(p * p.clamp(min=1 / values.numel()).log2()).sum())  # an empty bin counts 0
    if kind == "collision":
        return float(-p.square().sum().log2())
    return float((1 - p.pow(q).sum()) / (q - 1))
