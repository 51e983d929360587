"""Magnitudes of replies: find a reply whose values are far from those of the other clients."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping

LEAST_REPLIES = 3  # with two replies, nothing tells which of them is wrong
FLOOR = 1e-3  # smaller values count as this one: zeros and tiny values are not compared by ratios
SUSPICIOUS = 10.0  # a ratio beyond which a reply may be the reason why a round failed


class ReplyMagnitudes:
    """The largest absolute value of every field of every reply of a round, by step and client.

    Clients have different models and data, so honest magnitudes differ. They are compared with the median over the
    clients of a call, which a minority of clients cannot move far.
    """

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], dict[str, float]] = {}  # by (step, field), then by client

    def add(self, step: str, client: str, largest: Mapping[str, float]) -> None:
        """Add a reply: the largest absolute value of each of its fields."""
        for name, value in largest.items():
            self._values.setdefault((step, name), {})[client] = value

    def outliers(self, step: str, bound: float) -> dict[str, str]:
        """Return the clients whose values exceed `bound` times the median over clients, with a reason for each."""
        reasons: dict[str, str] = {}
        for (label, name), values in self._values.items():
            if label != step or len(values) < LEAST_REPLIES:
                continue
            median = statistics.median(values.values())
            for client, value in values.items():
                if value > bound * max(median, FLOOR):
                    reasons.setdefault(client, _reason(name, value, median))
        return reasons

    def most_extreme(self) -> tuple[str, str] | None:
        """Return the client whose values differ most from the median, and the reason. None: no client stands out."""
        found: tuple[float, str, str] | None = None
        for (_, name), values in self._values.items():
            if len(values) < LEAST_REPLIES:
                continue
            median = statistics.median(values.values())
            for client, value in values.items():
                distance = abs(math.log(max(value, FLOOR) / max(median, FLOOR)))
                if distance >= math.log(SUSPICIOUS) and (found is None or distance > found[0]):
                    found = (distance, client, _reason(name, value, median))
        return None if found is None else found[1:]


def _reason(name: str, value: float, median: float) -> str:
    return f"field '{name}' holds values up to {value:.3g}, the median over clients is {median:.3g}"
