"""Robust replacements of the plain means over clients: they collect all replies, then apply an aggregation rule.

The replies of a round stay in memory until the rule is applied. Beyond that, a rule needs memory for a block of
numbers of all clients, and for one tensor of all clients if they hold different parts of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from polyfed.core.aggregation import (
    LEAST_HOLDERS,
    Aggregation,
    clip_factors,
    combine_positions,
    krum_weights,
    lower_median,
    reply_weights,
    weighted_rows,
)
from polyfed.errors import RunError
from polyfed.models.slicing import Cut, OwnerMean, PooledStatistics, coverage
from polyfed.models.slicing.index import region
from polyfed.models.slicing.norm_statistics import MEAN, VARIANCE

NUMBERS = 1 << 22  # of all clients that are combined at a time


@dataclass(frozen=True)
class _Part:
    """What one client added."""

    weights: Mapping[str, Tensor]
    cut: Cut
    weight: float
    minus: Mapping[str, Tensor] | None
    times: Mapping[str, float]


class RobustOwnerMean(OwnerMean):
    """Position-wise aggregation of sub-models by a rule other than the mean, with the interface of `OwnerMean`.

    `mean` combines the changes from the old weights, so that clipping limits changes. Clients without weight are
    left out. Integer tensors (BatchNorm's counter) take the median. Positions with fewer than three owners take the
    mean of clipped changes.
    """

    def __init__(self, like: Mapping[str, Tensor], rule: Aggregation) -> None:
        super().__init__(like)
        self._rule = rule
        self._parts: list[_Part] = []

    def add(
        self,
        weights: Mapping[str, Tensor],
        cut: Cut,
        weight: float = 1.0,
        *,
        minus: Mapping[str, Tensor] | None = None,
        times: Mapping[str, float] | None = None,
    ) -> None:
        self.check(weights, cut)
        if weight > 0:
            self._parts.append(_Part(weights, cut, weight, minus, times or {}))

    def mean(self, otherwise: Mapping[str, Tensor]) -> dict[str, Tensor]:
        means = dict(otherwise)
        for name, change in self._changes(otherwise).items():
            old = otherwise[name].detach()
            value = (old.double() + change if old.is_floating_point() else change).to(old.dtype)
            means[name] = torch.where(change.isnan(), old, value)
        return means

    def mean_difference(self) -> dict[str, Tensor]:
        means: dict[str, Tensor] = {}
        for name, change in self._changes(None).items():
            like = self._like[name].detach()
            if like.is_floating_point():
                means[name] = torch.where(change.isnan(), 0, change)
            else:
                means[name] = torch.where(change.isnan(), like, change.to(like.dtype))
        return means

    def result(self, old: Mapping[str, Tensor]) -> dict[str, Tensor]:
        means = self.mean(old)
        owned = (name for name in self._names() if name.endswith(VARIANCE))
        return means | {name: means[name].clamp(min=0) for name in owned}

    def weights(self) -> dict[str, Tensor]:
        cuts = (({name: part.cut[name] for name in part.weights}, part.weight) for part in self._parts)
        return coverage({name: self._like[name] for name in self._names()}, cuts)

    def _names(self) -> list[str]:
        return [name for name in self._like if any(name in part.weights for part in self._parts)]

    def _changes(self, centre: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
        """Return the combined change of every tensor, NaN at positions without owners; integers are no changes."""
        names = self._names()
        combine = self._combiner([name for name in names if self._like[name].is_floating_point()], centre)
        changes: dict[str, Tensor] = {}
        for name in names:
            like = self._like[name]
            blocks = self._blocks(name, centre)
            combined = [combine(name, b) if like.is_floating_point() else lower_median(b) for b in blocks]
            changes[name] = torch.cat(combined).view(like.shape)
        return changes

    def _combiner(self, names: list[str], centre: Mapping[str, Tensor] | None) -> Callable[[str, Tensor], Tensor]:
        """Return the function that combines blocks (clients, positions) of the given tensors."""
        rule = self._rule
        if rule.compares_replies and len(self._parts) >= LEAST_HOLDERS:
            if rule.name == "krum" and self._holds_parts(names):
                weights = krum_weights(rule, self._shared_distances(names, centre))
            else:
                weights = reply_weights(rule, self._inner_products(names, centre))
            return lambda name, values: weighted_rows(values, weights, torch.ones_like(weights))
        weighted = rule.name == "norm-clipped"
        factors: dict[bool, Tensor] = {}  # by whether a tensor is a BatchNorm statistic

        def clipped(name: str, values: Tensor) -> Tensor:
            if not factors:
                factors.update(self._clip_factors(names, centre))
            weights = torch.tensor([part.weight if weighted else 1.0 for part in self._parts], dtype=torch.float64)
            return weighted_rows(values, weights.to(values.device), factors[_is_statistic(name)])

        def by_position(name: str, values: Tensor) -> Tensor:
            enough = (~values.isnan()).sum(0) >= LEAST_HOLDERS
            combined = combine_positions(rule, values)
            return combined if bool(enough.all()) else torch.where(enough, combined, clipped(name, values))

        return by_position if rule.by_position else clipped

    def _clip_factors(self, names: list[str], centre: Mapping[str, Tensor] | None) -> dict[bool, Tensor]:
        """Return the factors that limit the clients' changes, for BatchNorm statistics (True) and for all others.

        Statistics are on the scale of activations. In one norm with the weights, they would decide alone.
        """
        factors: dict[bool, Tensor] = {}
        for statistic in (False, True):
            squares = sizes = torch.zeros(len(self._parts), dtype=torch.float64, device=self._like[names[0]].device)
            for name in names:
                for values in self._blocks(name, centre) if _is_statistic(name) == statistic else ():
                    squares = squares + values.nan_to_num(nan=0.0).square().sum(1)
                    sizes = sizes + (~values.isnan()).sum(1)
            largest = self._rule.norm if not statistic else None
            factors[statistic] = clip_factors(squares.sqrt(), sizes, largest)
        return factors

    def _holds_parts(self, names: list[str]) -> bool:
        """Return whether a client lacks some positions of the given tensors."""
        return any(
            name not in part.weights or any(positions is not None for positions in part.cut[name])
            for part in self._parts
            for name in names
        )

    def _shared_distances(self, names: list[str], centre: Mapping[str, Tensor] | None) -> Tensor:
        """Return the mean squared distances of all pairs of changes, over the positions that both clients hold.

        Clients that share no position are infinitely far from each other.
        """
        clients = len(self._parts)
        totals = torch.zeros(clients, clients, dtype=torch.float64, device=self._like[names[0]].device)
        shared = torch.zeros_like(totals)
        for name in names:
            for block in self._blocks(name, centre):
                held, values = (~block.isnan()).double(), block.nan_to_num(nan=0.0)
                squares = values.square() @ held.T
                totals += squares + squares.T - 2 * values @ values.T
                shared += held @ held.T
        return torch.where(shared > 0, totals.clamp(min=0) / shared, torch.inf)

    def _inner_products(self, names: list[str], centre: Mapping[str, Tensor] | None) -> Tensor:
        """Return the inner products of the changes of all pairs of clients."""
        clients = len(self._parts)
        products = torch.zeros(clients, clients, dtype=torch.float64, device=self._like[names[0]].device)
        for name in names:
            for values in self._blocks(name, centre):
                if bool(values.isnan().any()):
                    raise RunError(
                        f"aggregation {self._rule.name} compares whole replies, but tensor '{name}' is not in all of "
                        "them; use krum, median, trimmed-mean or norm-clipped"
                    )
                products += values @ values.T
        return products

    def _blocks(self, name: str, centre: Mapping[str, Tensor] | None) -> Iterator[Tensor]:
        """Yield the values of a tensor as matrices (clients, positions) in double precision, block by block.

        Values are differences from `centre`, or from the `minus` of `add`. Integers are not changed.
        """
        like = self._like[name]
        length = max(1, NUMBERS // max(1, len(self._parts)))
        rows = [self._whole(part, name) for part in self._parts]
        for start in range(0, max(1, like.numel()), length):
            block = slice(start, start + length)
            values = []
            for part, row in zip(self._parts, rows, strict=True):
                minus = centre if part.minus is None else part.minus
                value = row[block].double() if row is not None else None
                if value is None:
                    size = len(like.reshape(-1)[block])
                    value = torch.full((size,), torch.nan, dtype=torch.float64, device=like.device)
                elif like.is_floating_point():
                    if minus is not None:
                        value = value - minus[name].detach().reshape(-1)[block]
                    value = value * part.times.get(name, 1.0)
                values.append(value)
            yield torch.stack(values)

    def _whole(self, part: _Part, name: str) -> Tensor | None:
        """Return a client's values at all positions of the big tensor, flat, with NaN where it has none."""
        if name not in part.weights:
            return None
        like, value = self._like[name], part.weights[name].detach()
        value = value.to(like.device)
        if all(positions is None for positions in part.cut[name]):
            return value.reshape(-1)
        kind = like.dtype if like.is_floating_point() else torch.float64
        whole = torch.full(like.shape, torch.nan, dtype=kind, device=like.device)
        whole[region(part.cut[name], like.device)] = value.to(kind)
        return whole.view(-1)


class RobustStatistics(PooledStatistics):
    """BatchNorm statistics of all clients, combined by a rule.

    A variance is combined from the clients' mean squared distances to the combined mean, so it is never negative.
    """

    def __init__(self, before: Mapping[str, Tensor], rule: Aggregation) -> None:
        super().__init__(before)
        self._rule = rule
        self._replies: list[tuple[Mapping[str, Tensor], Cut, float]] = []

    def add(self, statistics: Mapping[str, Tensor], cut: Cut, count: float) -> None:
        self._replies.append((statistics, cut, count))

    def result(self) -> dict[str, Tensor]:
        means, variances = RobustOwnerMean(self._before, self._rule), RobustOwnerMean(self._before, self._rule)
        for statistics, cut, count in self._replies:
            means.add({name: t for name, t in statistics.items() if name.endswith(MEAN)}, cut, count)
        merged = means.mean(self._before)
        for statistics, cut, count in self._replies:
            squares: dict[str, Tensor] = {}
            for name in (name for name in statistics if name.endswith(VARIANCE)):
                centre = name.removesuffix(VARIANCE) + MEAN
                common = merged[centre][region(cut[centre], merged[centre].device)]
                squares[name] = statistics[name] + (statistics[centre] - common).square()
            variances.add(squares, cut, count)
        return variances.result(merged)


def owner_mean(rule: Aggregation, like: Mapping[str, Tensor]) -> OwnerMean:
    """Return an empty position-wise mean of sub-models under a rule."""
    return OwnerMean(like) if rule.is_mean else RobustOwnerMean(like, rule)


def pooled_statistics(rule: Aggregation, before: Mapping[str, Tensor]) -> PooledStatistics:
    """Return empty BatchNorm statistics over clients under a rule."""
    return PooledStatistics(before) if rule.is_mean else RobustStatistics(before, rule)


def _is_statistic(name: str) -> bool:
    return name.endswith((MEAN, VARIANCE))
