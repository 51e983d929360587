"""Accuracies and metrics of one round, with the values of single clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polyfed.runs.json_values import entries, finite

Metrics = Mapping[str, Mapping[str, "Metric"]]  # by kind of accuracy, such as `personal`, and name


@dataclass(frozen=True, slots=True)
class Accuracy:
    """An accuracy of one round: the mean, and the accuracy of each client (None without test samples)."""

    value: float
    by_client: Sequence[float | None] = ()


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of one round: the mean over clients, and the value of each client (None if it is not defined).

    `worst_decile` and `client_mean` have no values by client.
    """

    value: float | None
    by_client: Sequence[float | None] = ()


def metrics_to_dict(metrics: Metrics) -> dict[str, Any]:
    """Return metrics as JSON values, as written to events and checkpoints."""
    return {
        kind: {name: {"value": one.value, "by_client": list(one.by_client)} for name, one in by.items()}
        for kind, by in metrics.items()
    }


def metrics_from_dict(raw: Any) -> dict[str, dict[str, Metric]]:
    """Read what is usable of the metrics of a round."""
    return {
        kind: {
            name: Metric(finite(one.get("value")), [finite(value) for value in one.get("by_client") or ()])
            for name, one in entries(by)
            if isinstance(one, Mapping) and isinstance(one.get("by_client", []), list)
        }
        for kind, by in entries(raw)
    }
