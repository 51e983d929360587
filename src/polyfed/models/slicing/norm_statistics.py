"""BatchNorm statistics of many clients' data as one: merged by counts, position by position."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from polyfed.models.slicing.index import Cut
from polyfed.models.slicing.owner_mean import OwnerMean

MEAN, VARIANCE = "running_mean", "running_var"


def statistics_of(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The running means and variances among a model's tensors."""
    return {name: tensor for name, tensor in weights.items() if name.endswith((MEAN, VARIANCE))}


class PooledStatistics:
    """Mean and variance over the samples of all, from those of each: E[x^2] - E[x]^2 with both means by counts."""

    def __init__(self, before: Mapping[str, Tensor]) -> None:
        """`before`: the statistics so far, which stay at positions that nobody measures."""
        self._before = before
        self._moments = OwnerMean(before)

    def add(self, statistics: Mapping[str, Tensor], cut: Cut, count: float) -> None:
        """One client's statistics over `count` samples."""
        moments = {name: tensor.double() for name, tensor in statistics.items()}
        for name in moments:
            if name.endswith(VARIANCE):
                moments[name] = moments[name] + moments[name.removesuffix(VARIANCE) + MEAN] ** 2
        self._moments.add(moments, cut, count)

    def result(self) -> dict[str, Tensor]:
        weights = self._moments.weights()
        moments = self._moments.mean({name: old.double() for name, old in self._before.items()})
        merged = dict(self._before)
        for name, weight in weights.items():
            value = moments[name]
            if name.endswith(VARIANCE):
                value = (value - moments[name.removesuffix(VARIANCE) + MEAN] ** 2).clamp(min=0)
            merged[name] = torch.where(weight > 0, value.to(merged[name].dtype), merged[name])
        return merged
