"""Pooled BatchNorm statistics of all clients, weighted by sample counts, position by position."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from polyfed.models.slicing.index import Cut
from polyfed.models.slicing.owner_mean import OwnerMean

MEAN, VARIANCE = "running_mean", "running_var"


def statistics_of(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the running means and variances of a model's tensors."""
    return {name: tensor for name, tensor in weights.items() if name.endswith((MEAN, VARIANCE))}


class PooledStatistics:
    """Mean and variance over the samples of all clients, from the clients' own statistics.

    The variance is E[x^2] - E[x]^2. Both expectations are means weighted by sample counts.
    """

    def __init__(self, before: Mapping[str, Tensor]) -> None:
        """Start from `before`, the current statistics. They remain at positions without client statistics."""
        self._before = before
        self._moments = OwnerMean(before)

    def add(self, statistics: Mapping[str, Tensor], cut: Cut, count: float) -> None:
        """Add one client's statistics over `count` samples."""
        moments = {name: tensor.double() for name, tensor in statistics.items()}
        for name in moments:
            if name.endswith(VARIANCE):
                moments[name] = moments[name] + moments[name.removesuffix(VARIANCE) + MEAN] ** 2
        self._moments.add(moments, cut, count)

    def result(self) -> dict[str, Tensor]:
        """Return the pooled statistics."""
        weights = self._moments.weights()
        moments = self._moments.mean({name: old.double() for name, old in self._before.items()})
        merged = dict(self._before)
        for name, weight in weights.items():
            value = moments[name]
            if name.endswith(VARIANCE):
                value = (value - moments[name.removesuffix(VARIANCE) + MEAN] ** 2).clamp(min=0)
            merged[name] = torch.where(weight > 0, value.to(merged[name].dtype), merged[name])
        return merged
