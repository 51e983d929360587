"""Check that all values of a payload are finite, and find the largest ones."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from polyfed.core.class_tables import ClassTable
from polyfed.core.payload import Value
from polyfed.errors import PayloadError

LARGEST = 1e300  # largest number in a message, so that sums stay finite


def check_finite(payload: Mapping[str, Value]) -> dict[str, float]:
    """Raise PayloadError if a field contains NaN or infinity. Return the largest absolute value of every field."""
    return {name: _largest(name, value) for name, value in payload.items()}


def _largest(path: str, value: object) -> float:
    """Return the largest absolute value of a field. Text, flags and integer tensors count as 0."""
    if isinstance(value, Mapping):
        return max((_largest(f"{path}/{key}", item) for key, item in value.items()), default=0.0)
    if isinstance(value, int | float):
        number = 0.0 if isinstance(value, bool) else abs(value)
        if not number <= LARGEST:
            raise PayloadError(f"field '{path}' is not a finite number of at most {LARGEST:g}")
        return float(number)
    tensor = value.values if isinstance(value, ClassTable) else value
    if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point() or not tensor.numel():
        return 0.0
    smallest, largest = torch.aminmax(tensor)  # one pass, and NaN propagates
    number = max(-float(smallest), float(largest))
    if not math.isfinite(number):
        raise PayloadError(f"field '{path}' holds values that are not finite")
    return number
