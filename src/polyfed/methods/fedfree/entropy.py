"""The entropy of a layer's weights, which Eq. 6 compares between layers."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Entropy = Literal["shannon", "tsallis", "collision"]


def weight_entropy(
    weight: Tensor,
    kind: Entropy = "shannon",
    *,
    bins: int = 256,
    q: float = 2.0,
    limits: tuple[float, float] | None = None,
) -> float:
    """Return the entropy of the histogram of a tensor, with equal bins between `limits`.

    The default limits are its smallest and largest value. Shannon: -sum p log2 p. Collision: -log2 sum p^2. Tsallis:
    (1 - sum p^q) / (q - 1). Constant: 0.
    """
    values = weight.detach().reshape(-1).to(torch.float64, copy=True)
    if not values.numel():
        return 0.0
    low, high = limits or _limits(values)
    span = high - low
    if not span > 0:
        return 0.0
    # in place: for layers of a few thousand weights the overhead of each operation dominates
    bin_of = values.sub_(low).div_(span).mul_(bins).long().clamp_(max=bins - 1)  # the largest is in the last bin
    p = torch.bincount(bin_of, minlength=bins).double() / values.numel()
    if kind == "shannon":
        return float(-(p * p.clamp(min=1 / values.numel()).log2()).sum())  # an empty bin adds 0
    if kind == "collision":
        return float(-p.square().sum().log2())
    return float((1 - p.pow(q).sum()) / (q - 1))


def entropy_gain(received: Tensor, own: Tensor, kind: Entropy = "shannon", *, q: float = 2.0) -> float:
    """Return H(received) - H(own), with the same bins for both: between the limits of the pair.

    With bins of its own, a tensor scores by how evenly it fills its range, and random weights fill it best.
    """
    low, high = zip(_limits(received), _limits(own), strict=True)
    limits = min(low), max(high)
    return weight_entropy(received, kind, q=q, limits=limits) - weight_entropy(own, kind, q=q, limits=limits)


def _limits(values: Tensor) -> tuple[float, float]:
    low, high = values.detach().aminmax()
    return float(low), float(high)
