"""The rule by which learning rates are tuned: three values, compared on validation data.

Runs that tune hold out a fifth of the training samples (`data.validation`) and have a random seed that no table uses.
Test data is not used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

VALIDATION = 0.2
SEED = 10
FACTORS = (1 / 3, 3.0)

Value = TypeVar("Value")


def learning_rates(rate: float) -> list[float]:
    """Return the learning rates to try: the given one, and a third and three times of it, rounded to one digit."""
    return [rate, *(float(f"{rate * factor:.1g}") for factor in FACTORS)]


def best_value(scores: Mapping[Value, float]) -> Value:
    """Return the value with the highest score. The first one wins ties."""
    return max(scores, key=lambda value: scores[value])
