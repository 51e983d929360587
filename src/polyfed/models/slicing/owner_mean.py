"""Position-wise mean: every position of the big model is averaged over the sub-models that contain it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from polyfed.errors import InputError, nearest
from polyfed.models.slicing.index import Cut, Index, region

BLOCK = 1 << 16  # numbers that are added at a time


class _TotalWeight:
    """Total weight at each position of one tensor.

    An axis that no cut has indexed yet has length 1. Depth slices therefore cost one number per tensor, and kernel
    axes are not expanded.
    """

    def __init__(self, like: Tensor) -> None:
        self._shape = like.shape
        self.total = torch.zeros([1] * like.ndim, dtype=torch.float64, device=like.device)

    def add(self, index: Index, weight: float) -> None:
        """Add `weight` at the positions of `index`."""
        shape = [
            size if positions is not None else current
            for size, current, positions in zip(self._shape, self.total.shape, index, strict=True)
        ]
        if shape != list(self.total.shape):
            self.total = self.total.expand(shape).clone()
        self.total[region(index, self.total.device)] += weight


class OwnerMean:
    """Position-wise weighted mean of sub-models, which are added one at a time. The owners of a position contain it.

    Sums are in double precision, so one owner, or several equal owners, give a bit-identical value back. Tensors
    without owners take no memory. Integer tensors (BatchNorm's counter) take the maximum.
    """

    def __init__(self, like: Mapping[str, Tensor]) -> None:
        """Start an empty mean with the shapes, types and devices of `like`, the big model's tensors."""
        self._like = like
        self._totals: dict[str, Tensor] = {}  # weighted sums; maxima for integers
        self._weights: dict[str, _TotalWeight] = {}

    def add(
        self,
        weights: Mapping[str, Tensor],
        cut: Cut,
        weight: float = 1.0,
        *,
        minus: Mapping[str, Tensor] | None = None,
        times: Mapping[str, float] | None = None,
    ) -> None:
        """Add all or some of the tensors of one sub-model. Tensors that it did not train may be left out.

        `minus` holds tensors of the big model, whose values at the same positions are subtracted first. `times` are
        factors of some of the tensors. Both apply to floats only.
        """
        self.check(weights, cut)
        for name, part in weights.items():
            like = self._like[name]
            if name not in self._totals:
                self._totals[name], self._weights[name] = empty_total(like), _TotalWeight(like)
            subscript, value = region(cut[name], like.device), part.detach().to(like.device)
            # Indexing with vectors returns a copy, which is written back below; indexing with slices returns a view.
            total, copied = self._totals[name][subscript], any(isinstance(part, Tensor) for part in subscript)
            if like.is_floating_point():
                less = None if minus is None else minus[name].detach()
                if less is not None:
                    less = less[subscript]
                add_scaled(total, value, weight, minus=less, times=1.0 if times is None else times.get(name, 1.0))
            else:
                total.copy_(torch.maximum(total, value))
            if copied:
                self._totals[name][subscript] = total
            self._weights[name].add(cut[name], weight)

    def check(self, weights: Mapping[str, Tensor], cut: Cut) -> None:
        """Raise InputError if a tensor is not part of the slice or has the wrong shape."""
        for name, part in weights.items():
            _check(name, part, cut, self._like)

    def mean(self, otherwise: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the mean at positions with owners, and the unchanged values of `otherwise`, the old weights, at all
        others. A tensor without any owner is returned as the same object, not as a copy."""
        means = dict(otherwise)
        for name, total in self._totals.items():
            weight, old = self._weights[name].total, otherwise[name].detach()
            value = (total / weight).to(old.dtype) if old.is_floating_point() else total
            means[name] = value if bool((weight > 0).all()) else torch.where(weight > 0, value, old)
        return means

    def mean_difference(self) -> dict[str, Tensor]:
        """Return the mean in double precision at positions with owners, and 0 at all others, for sums of differences.

        Integers are not differences: positions without owners keep their values.
        """
        means: dict[str, Tensor] = {}
        for name, total in self._totals.items():
            weight, old = self._weights[name].total, self._like[name].detach()
            owned = weight > 0
            value = total / weight if old.is_floating_point() else total
            other = torch.zeros((), dtype=torch.float64) if old.is_floating_point() else old
            means[name] = value if bool(owned.all()) else torch.where(owned, value, other.to(value.device))
        return means

    def result(self, old: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return `mean` for a complete model, with running variances clamped at zero."""
        means = self.mean(old)
        owned = (name for name in self._totals if name.endswith("running_var"))
        return means | {name: means[name].clamp(min=0) for name in owned}

    def weights(self) -> dict[str, Tensor]:
        """Return the total weight at every position, in the big model's shapes; zero at positions without owners."""
        return {name: weight.total.expand(self._like[name].shape) for name, weight in self._weights.items()}


def coverage(like: Mapping[str, Tensor], cuts: Iterable[tuple[Cut, float]]) -> dict[str, Tensor]:
    """Return the total weight that these cuts give to each position of the big model, without needing sub-models.

    With weights of 1, this is the number of clients that train each position (N_q in HeteroScaffold).
    """
    weights = {name: _TotalWeight(tensor) for name, tensor in like.items()}
    for cut, weight in cuts:
        for name, index in cut.items():
            if name not in weights:
                raise InputError(f"The big model has no tensor '{name}'; {nearest(name, like)}.")
            weights[name].add(index, weight)
    return {name: weight.total.expand(like[name].shape) for name, weight in weights.items()}


def add_scaled(
    total: Tensor, value: Tensor, weight: float, *, minus: Tensor | None = None, times: float = 1.0
) -> None:
    """Add `(value - minus) * times * weight` to a total, in double precision.

    Large tensors are added block by block, so that intermediate values stay in the processor's cache.
    """
    operands = [total, value] if minus is None else [total, value, minus]
    if total.is_cpu and total.numel() > BLOCK and all(tensor.is_contiguous() for tensor in operands):
        parts = [torch.split(tensor.view(-1), BLOCK) for tensor in operands]
        buffer = torch.empty(BLOCK, dtype=torch.float64)
    else:
        parts = [(tensor,) for tensor in operands]
        buffer = None
    for part in zip(*parts, strict=True):
        term = torch.empty_like(part[1], dtype=torch.float64) if buffer is None else buffer[: part[1].numel()]
        term.copy_(part[1])
        if minus is not None:
            term.sub_(part[2])
        for factor in (times, weight):
            if factor != 1.0:
                term.mul_(factor)
        part[0].add_(term)


def empty_total(like: Tensor) -> Tensor:
    """Return the initial total: negative zero for sums, the smallest value of the type for integer maxima.

    Adding to negative zero preserves the sign of a first summand that is itself a zero.
    """
    if like.is_floating_point():
        return torch.full_like(like, -0.0, dtype=torch.float64, requires_grad=False)
    return torch.full_like(like, False if like.dtype == torch.bool else torch.iinfo(like.dtype).min)


def _check(name: str, part: Tensor, cut: Cut, like: Mapping[str, Tensor]) -> None:
    """Raise InputError if a tensor is not part of the slice or has the wrong shape."""
    if name not in cut or name not in like:
        available = [tensor for tensor in cut if tensor in like]
        raise InputError(f"Tensor '{name}' is not in the slice that is merged; {nearest(name, available)}.")
    axes = zip(like[name].shape, cut[name], strict=True)
    shape = tuple(size if positions is None else len(positions) for size, positions in axes)
    if tuple(part.shape) != shape:
        raise InputError(f"Tensor '{name}' has shape {tuple(part.shape)}, but its slice has shape {shape}.")
