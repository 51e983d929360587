"""Weighted averages of state dicts, accumulated one reply at a time in the given order."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from polyfed.core.aggregation import MEAN, Aggregation
from polyfed.core.payload import Weights
from polyfed.core.robust_mean import RobustOwnerMean
from polyfed.errors import PayloadError
from polyfed.models.slicing.running_sums import RunningSums, Term


class WeightedMean:
    """Running weighted mean of state dicts. Memory does not grow with the number of clients.

    Sums are in double precision. Integer tensors (BatchNorm's counter) take the maximum, and running variances are
    clamped at zero. With `server.aggregation` as `rule`, the aggregation rule of the config replaces the mean; rules
    other than the mean keep all state dicts until `result` is called.
    """

    def __init__(self, rule: Aggregation = MEAN) -> None:
        self._rule = rule
        self._replies: list[tuple[Mapping[str, Tensor], float]] = []  # unless the rule is the mean
        self._sums = RunningSums()
        self._kinds: dict[str, tuple[torch.Size, torch.dtype]] = {}  # shape and type of the first reply's tensors
        self._weight = 0.0

    def add(self, weights: Mapping[str, Tensor], weight: float) -> None:
        if not self._rule.is_mean:
            self._replies.append((weights, weight))
            self._weight += weight
            return
        for name, tensor in weights.items():
            shape, _ = self._kinds.setdefault(name, (tensor.shape, tensor.dtype))
            if tensor.shape != shape:  # found here, while it is known whose reply this is
                raise PayloadError(
                    f"'{name}' has the shape {tuple(tensor.shape)}; that of another client has {tuple(shape)}"
                )
        terms = {name: Term(tensor, (slice(None),) * tensor.ndim, weight) for name, tensor in weights.items()}
        self._sums.add(terms, weights)
        self._weight += weight

    def result(self, otherwise: Weights) -> Weights:
        """Return the mean, or `otherwise` if the total weight is zero. Nothing can be added later."""
        if self._weight <= 0:
            return otherwise
        if not self._rule.is_mean:
            return self._robust(otherwise)
        means = {
            name: total.div_(self._weight).to(self._kinds[name][1]) if total.is_floating_point() else total
            for name, total in self._sums.take().items()
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
