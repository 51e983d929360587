"""The mean over owners: every position of the big model is averaged over the sub-models that hold it (B0)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from polyfed.errors import InputError, nearest
from polyfed.models.slicing.index import Cut, Index, region


class _Weight:
    """How much weight each position of one tensor has got.

    An axis that no cut has touched yet has length 1, so that depth slices cost one number for each tensor and
    convolutions none for their kernels.
    """

    def __init__(self, like: Tensor) -> None:
        self._shape = like.shape
        self.total = torch.zeros([1] * like.ndim, dtype=torch.float64, device=like.device)

    def add(self, index: Index, weight: float) -> None:
        wanted = [
            size if kept is not None else has
            for size, has, kept in zip(self._shape, self.total.shape, index, strict=True)
        ]
        if wanted != list(self.total.shape):
            self.total = self.total.expand(wanted).clone()
        self.total[region(index, self.total.device)] += weight


class OwnerMean:
    """Per-position weighted mean of sub-models, taken one at a time and in the order given.

    Holds one sum for each tensor of the big model that somebody owns, in double precision: one owner, and equal
    owners, give their own value back to the last bit. Integer tensors (BatchNorm's counter) take the largest value.
    """

    def __init__(self, like: Mapping[str, Tensor]) -> None:
        """`like`: the big model's tensors, of which only shape, type and device are used."""
        self._like = like
        self._totals: dict[str, Tensor] = {}  # the weighted sum, for integers the largest so far
        self._weights: dict[str, _Weight] = {}

    def add(self, weights: Mapping[str, Tensor], cut: Cut, weight: float = 1.0) -> None:
        """One sub-model's tensors, or some of them: what it did not train may be left out."""
        for name, part in weights.items():
            _check(name, part, cut, self._like)
        for name, part in weights.items():
            like = self._like[name]
            if name not in self._totals:
                self._totals[name], self._weights[name] = _empty(like), _Weight(like)
            places, own = region(cut[name], like.device), part.detach().to(like.device)
            # Written back only where vectors address a copy; what slices address is the total itself.
            total, copied = self._totals[name][places], any(kept is not None for kept in cut[name])
            if like.is_floating_point():
                total += own.double() * weight
            else:
                total.copy_(torch.maximum(total, own))
            if copied:
                self._totals[name][places] = total
            self._weights[name].add(cut[name], weight)

    def mean(self, otherwise: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The mean where there are owners, elsewhere the bits of `otherwise`: old weights, or zeros for differences.

        A tensor without any owner is that of `otherwise` itself, not a copy.
        """
        means = dict(otherwise)
        for name, total in self._totals.items():
            weight, old = self._weights[name].total, otherwise[name].detach()
            value = (total / weight).to(old.dtype) if old.is_floating_point() else total
            means[name] = torch.where(weight > 0, value, old)
        return means

    def result(self, old: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """`mean` for a whole model: variances are also kept from falling below zero."""
        means = self.mean(old)
        owned = (name for name in self._totals if name.endswith("running_var"))
        return means | {name: means[name].clamp(min=0) for name in owned}

    def weights(self) -> dict[str, Tensor]:
        """How much weight every position got, in the big model's shapes; zero where nobody owns it."""
        return {name: weight.total.expand(self._like[name].shape) for name, weight in self._weights.items()}


def coverage(like: Mapping[str, Tensor], cuts: Iterable[tuple[Cut, float]]) -> dict[str, Tensor]:
    """How much weight each position of the big model would get from these cuts, without any sub-model at hand.

    With every weight 1 it counts holders: the N_q of HeteroScaffold (B5).
    """
    weights = {name: _Weight(tensor) for name, tensor in like.items()}
    for cut, weight in cuts:
        for name, index in cut.items():
            if name not in weights:
                raise InputError(f"The big model has no tensor '{name}': {nearest(name, like)}.")
            weights[name].add(index, weight)
    return {name: weight.total.expand(like[name].shape) for name, weight in weights.items()}


def _empty(like: Tensor) -> Tensor:
    """Where sums begin: at zero, the negative one, which alone leaves every first addend its sign.

    The largest integer is looked for from the smallest there is.
    """
    if like.is_floating_point():
        return torch.full_like(like, -0.0, dtype=torch.float64, requires_grad=False)
    return torch.full_like(like, False if like.dtype == torch.bool else torch.iinfo(like.dtype).min)


def _check(name: str, part: Tensor, cut: Cut, like: Mapping[str, Tensor]) -> None:
    if name not in cut or name not in like:
        known = [known for known in cut if known in like]
        raise InputError(f"Tensor '{name}' is not in the slice that is merged: {nearest(name, known)}.")
    shape = tuple(size if kept is None else len(kept) for size, kept in zip(like[name].shape, cut[name], strict=True))
    if tuple(part.shape) != shape:
        raise InputError(f"Tensor '{name}' has shape {tuple(part.shape)}, but its slice has shape {shape}.")
