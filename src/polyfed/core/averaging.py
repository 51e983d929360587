"""Weighted averages of state dicts, accumulated one reply at a time in the given order."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from polyfed.core.payload import Weights


class WeightedMean:
    """Running weighted mean of state dicts. Memory does not grow with the number of clients.

    Sums are in double precision. Integer tensors (BatchNorm's counter) take the maximum, and running variances are
    clamped at zero.
    """

    def __init__(self) -> None:
        self._total: dict[str, Tensor] = {}
        self._dtype: dict[str, torch.dtype] = {}
        self._weight = 0.0

    def add(self, weights: Mapping[str, Tensor], weight: float) -> None:
        for name, tensor in weights.items():
            if not tensor.is_floating_point():
                self._total[name] = torch.maximum(self._total[name], tensor) if name in self._total else tensor
                continue
            term = tensor.double() * weight
            if name in self._total:
                self._total[name] += term
            else:
                self._total[name], self._dtype[name] = term, tensor.dtype
        self._weight += weight

    def result(self, otherwise: Weights) -> Weights:
        """Return the mean, or `otherwise` if the total weight is zero."""
        if self._weight <= 0:
            return otherwise
        means = {
            name: (total / self._weight).to(self._dtype[name]) if name in self._dtype else total
            for name, total in self._total.items()
        }
        return {name: t.clamp_(min=0) if name.endswith("running_var") else t for name, t in means.items()}
