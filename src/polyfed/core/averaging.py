"""Weighted averages of state dicts, accumulated one reply at a time in the given order."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from polyfed.core.aggregation import MEAN, Aggregation
from polyfed.core.payload import Weights
from polyfed.core.robust_mean import RobustOwnerMean
from polyfed.models.slicing.owner_mean import add_scaled, empty_total


class WeightedMean:
    """Running weighted mean of state dicts. Memory does not grow with the number of clients.

    Sums are in double precision. Integer tensors (BatchNorm's counter) take the maximum, and running variances are
    clamped at zero. With `server.aggregation` as `rule`, the aggregation rule of the config replaces the mean; rules
    other than the mean keep all state dicts until `result` is called.
    """

    def __init__(self, rule: Aggregation = MEAN) -> None:
        self._rule = rule
        self._replies: list[tuple[Mapping[str, Tensor], float]] = []  # unless the rule is the mean
        self._total: dict[str, Tensor] = {}
        self._dtype: dict[str, torch.dtype] = {}
        self._weight = 0.0

    def add(self, weights: Mapping[str, Tensor], weight: float) -> None:
        if not self._rule.is_mean:
            self._replies.append((weights, weight))
            self._weight += weight
            return
        for name, tensor in weights.items():
            if not tensor.is_floating_point():
                self._total[name] = torch.maximum(self._total[name], tensor) if name in self._total else tensor
                continue
            if name not in self._total:
                self._total[name], self._dtype[name] = empty_total(tensor), tensor.dtype
            add_scaled(self._total[name], tensor, weight)
        self._weight += weight

    def result(self, otherwise: Weights) -> Weights:
        """Return the mean, or `otherwise` if the total weight is zero."""
        if self._weight <= 0:
            return otherwise
        if not self._rule.is_mean:
            return self._robust(otherwise)
        means = {
            name: (total / self._weight).to(self._dtype[name]) if name in self._dtype else total
            for name, total in self._total.items()
        }
        return {name: t.clamp_(min=0) if name.endswith("running_var") else t for name, t in means.items()}

    def _robust(self, old: Weights) -> Weights:
        """Combine the changes from the old weights by the rule."""
        first, _ = self._replies[0]
        before = {name: old[name] if name in old else torch.zeros_like(tensor) for name, tensor in first.items()}
        mean = RobustOwnerMean(before, self._rule)
        for weights, weight in self._replies:
            mean.add(weights, {name: (None,) * tensor.ndim for name, tensor in weights.items()}, weight)
        return mean.result(before)
