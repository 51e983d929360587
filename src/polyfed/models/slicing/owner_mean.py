"""Position-wise mean: every position of the big model is averaged over the sub-models that contain it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from polyfed.errors import InputError, nearest
from polyfed.models.slicing.index import Cut, Index, region
from polyfed.models.slicing.running_sums import RunningSums, Term


class _TotalWeight:
    """Total weight at each position of one tensor.

    An axis that no cut has indexed yet has length 1. Depth slices therefore cost one number per tensor, and kernel
    axes are not expanded.
    """

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._everywhere = 0.0  # until a cut indexes an axis
        self._by_position: Tensor | None = None

    @property
    def total(self) -> Tensor:
        if self._by_position is not None:
            return self._by_position
        shape, device = [1] * self._like.ndim, self._like.device
        return torch.full(shape, self._everywhere, dtype=torch.float64, device=device)

    def add(self, index: Index, weight: float) -> None:
        """Add `weight` at the positions of `index`."""
        if self._by_position is None and all(positions is None for positions in index):
            self._everywhere += weight
            return
        total = self.total
        shape = [
            size if positions is not None else current
            for size, current, positions in zip(self._like.shape, total.shape, index, strict=True)
        ]
        if shape != list(total.shape):
            total = total.expand(shape).clone()
        total[region(index, total.device)] += weight
        self._by_position = total


class OwnerMean:
    """Position-wise weighted mean of sub-models, which are added one at a time. The owners of a position contain it.

    Sums are in double precision, so one owner, or several equal owners, give a bit-identical value back. Tensors
    without owners take no memory. Integer tensors (BatchNorm's counter) take the maximum.
    """

    def __init__(self, like: Mapping[str, Tensor]) -> None:
        """Start an empty mean with the shapes, types and devices of `like`, the big model's tensors."""
        self._like = like
        self._sums = RunningSums()  # weighted
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
        terms: dict[str, Term] = {}
        for name, part in weights.items():
            like = self._like[name]
            if name not in self._weights:
                self._weights[name] = _TotalWeight(like)
            less = None if minus is None else minus[name].detach()
            factor = 1.0 if times is None else times.get(name, 1.0)
            at = region(cut[name], like.device)
            terms[name] = Term(part.detach().to(like.device), at, weight, less, factor)
            self._weights[name].add(cut[name], weight)
        self._sums.add(terms, self._like)

    def check(self, weights: Mapping[str, Tensor], cut: Cut) -> None:
        """Raise InputError if a tensor is not part of the slice or has the wrong shape."""
        for name, part in weights.items():
            _check(name, part, cut, self._like)

    def mean(self, otherwise: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the mean at positions with owners, and the unchanged values of `otherwise`, the old weights, at all
        others. A tensor without any owner is returned as the same object, not as a copy. Nothing can be added later.
        """
        means = dict(otherwise)
        for name, total in self._sums.take().items():
            weight, old = self._weights[name].total, otherwise[name].detach()
            value = total.div_(weight).to(old.dtype) if old.is_floating_point() else total
            means[name] = value if bool((weight > 0).all()) else torch.where(weight > 0, value, old)
        return means

    def mean_difference(self) -> dict[str, Tensor]:
        """Return the mean in double precision at positions with owners, and 0 at all others, for sums of differences.

        Integers are not differences: positions without owners keep their values. Nothing can be added later.
        """
        means: dict[str, Tensor] = {}
        for name, total in self._sums.take().items():
            weight, old = self._weights[name].total, self._like[name].detach()
            owned = weight > 0
            if old.is_floating_point():
                total.div_(weight)
            if bool(owned.all()):
                means[name] = total
            elif old.is_floating_point():
                means[name] = total.masked_fill_(~owned, 0.0)
            else:
                means[name] = torch.where(owned, total, old)
        return means

    def result(self, old: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return `mean` for a complete model, with running variances clamped at zero."""
        means = self.mean(old)
        owned = (name for name in self._weights if name.endswith("running_var"))
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


def _check(name: str, part: Tensor, cut: Cut, like: Mapping[str, Tensor]) -> None:
    """Raise InputError if a tensor is not part of the slice or has the wrong shape."""
    if name not in cut or name not in like:
        available = [tensor for tensor in cut if tensor in like]
        raise InputError(f"Tensor '{name}' is not in the slice that is merged; {nearest(name, available)}.")
    axes = zip(like[name].shape, cut[name], strict=True)
    shape = tuple(size if positions is None else len(positions) for size, positions in axes)
    if tuple(part.shape) != shape:
        raise InputError(f"Tensor '{name}' has shape {tuple(part.shape)}, but its slice has shape {shape}.")
