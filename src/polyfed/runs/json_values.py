"""Values of JSON files that may be damaged or written by someone else."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

LIMIT = 1 << 63  # of integers: larger ones are no counts, and break arithmetic with floats


def finite(value: Any) -> float | None:
    """Return a finite number as a float, and None for anything else."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:  # an integer beyond the range of floats
        return None
    return number if math.isfinite(number) else None


def integer(value: Any) -> int | None:
    """Return an integer of at most 64 bits, and None for anything else."""
    return value if type(value) is int and abs(value) < LIMIT else None


def is_number(value: Any) -> bool:
    """Return whether a value is a float or an integer of at most 64 bits."""
    return type(value) is float or integer(value) is not None


def mapping(value: Any) -> Mapping[str, Any]:
    """Return a mapping. Raise TypeError for anything else."""
    if not isinstance(value, Mapping):
        raise TypeError(f"expected a mapping, got {value!r}")
    return value


def entries(value: Any) -> Sequence[tuple[str, Any]]:
    """Return the entries of a mapping, and none for anything else."""
    return list(value.items()) if isinstance(value, Mapping) else []


def square_matrix(value: Any) -> list[list[int]]:
    """Return a square matrix of integers, and an empty list for anything else."""
    rows = value if isinstance(value, list) else []
    square = all(isinstance(row, list) and len(row) == len(rows) and all(type(n) is int for n in row) for row in rows)
    return rows if square else []


def valid_integers(value: Any) -> dict[str, int]:
    """Return the entries of a mapping whose values are integers."""
    return {name: count for name, raw in entries(value) if (count := integer(raw)) is not None}
