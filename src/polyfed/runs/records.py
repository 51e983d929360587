"""Typed records of a run: `RoundRecord`, one per round, and `Result`, the content of `result.json`.

Plain Python without torch or validation libraries: reports and the dashboard read many thousand records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from polyfed.runs.json_values import entries, finite, integer, mapping, square_matrix, valid_integers
from polyfed.runs.measurements import Accuracy, Metric, metrics_from_dict, metrics_to_dict
from polyfed.runs.result_check import check_result
from polyfed.runs.result_views import ResultViews

__all__ = ["Accuracy", "KINDS", "Metric", "Result", "RoundRecord", "VERSION", "failure_summary", "finite", "integer"]

VERSION = 1  # of `result.json`; results of earlier releases have no version key and the same content
KINDS = ("personal", "global")  # of accuracy


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """Measurements of one round. The field names are the keys of a `round` event in `events.jsonl`."""

    round: int
    accuracy: Mapping[str, Accuracy]  # empty if the round was not evaluated
    loss: float | None
    up: Mapping[str, int]  # bytes of tensors by message field, clients to server
    down: Mapping[str, int]  # server to clients
    overhead: Mapping[str, int]  # bytes that the encoding adds, "up" and "down"
    seconds: Mapping[str, float]  # "total" and its parts
    failures: Sequence[Mapping[str, Any]]
    released: Mapping[str, Mapping[str, int]] | None = None  # protected fields: number of releases by client
    metrics: Mapping[str, Mapping[str, Metric]] = field(default_factory=dict)  # by kind of accuracy and metric
    confusion: Mapping[str, Sequence[Sequence[int]]] = field(default_factory=dict)  # by kind, summed over clients

    @property
    def upload_bytes(self) -> int:
        return sum(self.up.values())

    @property
    def download_bytes(self) -> int:
        return sum(self.down.values())

    def accuracy_value(self, kind: str) -> float | None:
        """Return the mean accuracy of a kind, or None if it was not measured in this round."""
        measured = self.accuracy.get(kind)
        return None if measured is None else measured.value

    def metric_value(self, kind: str, name: str) -> float | None:
        """Return the mean of a metric, or None if it was not measured in this round."""
        if name == "accuracy":
            return self.accuracy_value(kind)
        measured = self.metrics.get(kind, {}).get(name)
        return None if measured is None else measured.value

    def without_clients(self) -> RoundRecord:
        """Return a copy without the accuracies of single clients, which take most of the memory."""
        values = {kind: Accuracy(one.value) for kind, one in self.accuracy.items()}
        # not `dataclasses.replace`, which takes several times as long
        return RoundRecord(
            self.round,
            values,
            self.loss,
            self.up,
            self.down,
            self.overhead,
            self.seconds,
            self.failures,
            self.released,
            {kind: {name: Metric(one.value) for name, one in by.items()} for kind, by in self.metrics.items()},
            self.confusion,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON values, as written to events and checkpoints."""
        return {
            "round": self.round,
            "accuracy": {
                kind: {"value": one.value, "by_client": list(one.by_client)} for kind, one in self.accuracy.items()
            },
            "loss": self.loss,
            "up": dict(self.up),
            "down": dict(self.down),
            "overhead": dict(self.overhead),
            "seconds": dict(self.seconds),
            "failures": [dict(failure) for failure in self.failures],
            **({} if self.released is None else {"released": self.released}),
            "metrics": metrics_to_dict(self.metrics),
            **({"confusion": self.confusion} if self.confusion else {}),
        }

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> RoundRecord:
        """Read a record that polyfed wrote.

        Raise KeyError, TypeError, ValueError or AttributeError for anything else.
        """
        return cls(
            round=int(raw["round"]),
            accuracy={
                kind: Accuracy(one.get("value"), one.get("by_client", ())) for kind, one in raw["accuracy"].items()
            },
            loss=raw["loss"],
            up=mapping(raw["up"]),
            down=mapping(raw["down"]),
            overhead=mapping(raw.get("overhead", {})),
            seconds=mapping(raw["seconds"]),
            failures=raw.get("failures", ()),
            released=raw.get("released"),
            metrics=metrics_from_dict(raw.get("metrics")),
            confusion=raw.get("confusion", {}),
        )

    @classmethod
    def from_damaged(cls, raw: Mapping[str, Any]) -> RoundRecord | None:
        """Read what is usable of a record in a file that may be damaged. Return None without a round number."""
        number = integer(raw.get("round"))
        if number is None:
            return None
        accuracy = {}
        for kind, measured in entries(raw.get("accuracy")):
            value = finite(measured.get("value")) if isinstance(measured, Mapping) else None
            if value is not None:
                by_client = measured.get("by_client")
                clients = by_client if isinstance(by_client, list) else ()
                accuracy[kind] = Accuracy(value, [finite(one) for one in clients])
        failures = raw.get("failures")
        if not isinstance(failures, list):
            failures = []
        return cls(
            round=number,
            accuracy=accuracy,
            loss=finite(raw.get("loss")),
            up=valid_integers(raw.get("up")),
            down=valid_integers(raw.get("down")),
            overhead=valid_integers(raw.get("overhead")),
            seconds={
                part: seconds for part, value in entries(raw.get("seconds")) if (seconds := finite(value)) is not None
            },
            failures=[one if isinstance(one, Mapping) else {} for one in failures],
            metrics=metrics_from_dict(raw.get("metrics")),
            confusion={
                kind: matrix
                for kind, raw_matrix in entries(raw.get("confusion"))
                if (matrix := square_matrix(raw_matrix))
            },
        )


@dataclass(frozen=True, slots=True)
class AccuracySummary:
    """One kind of accuracy over a whole run, as `result.json` has it."""

    final: float
    best: float
    best_round: int | None
    std_over_clients: float | None
    by_client: Sequence[float | None]  # in the last round that was evaluated
    by_round: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class MetricSummary:
    """One metric over a whole run, as `result.json` has it."""

    final: float | None
    by_client: Sequence[float | None]  # in the last round that was evaluated; empty for worst_decile and client_mean
    by_round: Sequence[float | None]


class Result(ResultViews):
    """The content of `result.json`: a dictionary, with typed properties for the values that readers use.

    It prints as a short table, and has `folder`, `clients`, `history` and `to_pandas`. A property raises KeyError,
    TypeError or AttributeError if the file has no such value; `check` tests the values that tables need.
    """

    @property
    def name(self) -> str:
        return str(self["name"])

    @property
    def method(self) -> str:
        return str(self["method"])

    @property
    def dataset(self) -> str:
        return str(self.get("data", {}).get("dataset", ""))

    @property
    def seed(self) -> int:
        return int(self["seed"])

    @property
    def rounds(self) -> int:
        return int(self["rounds"])

    @property
    def accuracy(self) -> dict[str, AccuracySummary | None]:
        """Accuracies by kind; None for a kind that was not measured."""
        return {kind: None if raw is None else _accuracy_summary(raw) for kind, raw in self["accuracy"].items()}

    @property
    def metrics(self) -> dict[str, dict[str, MetricSummary]]:
        """Metrics by kind of accuracy and name, such as `metrics["global"]["auroc"]`."""
        return {
            kind: {
                name: MetricSummary(one["final"], one.get("by_client", ()), one.get("by_round", ()))
                for name, one in by.items()
                if name != "confusion"
            }
            for kind, by in self.get("metrics", {}).items()
        }

    @property
    def confusion(self) -> dict[str, Sequence[Sequence[int]]]:
        """Confusion matrices by kind of accuracy, summed over clients: rows are true classes."""
        return {kind: by["confusion"] for kind, by in self.get("metrics", {}).items() if "confusion" in by}

    @property
    def loss_by_round(self) -> Sequence[float | None]:
        return list(self["loss"]["by_round"])

    @property
    def upload_bytes(self) -> int:
        return self["bytes"]["up"]  # type: ignore[no-any-return]

    @property
    def download_bytes(self) -> int:
        return self["bytes"]["down"]  # type: ignore[no-any-return]

    @property
    def upload_bytes_by_round(self) -> Sequence[int]:
        return list(self["bytes"]["up_by_round"])

    @property
    def download_bytes_by_round(self) -> Sequence[int]:
        return list(self["bytes"]["down_by_round"])

    @property
    def seconds(self) -> float:
        return self["seconds"]["total"]  # type: ignore[no-any-return]

    @property
    def seconds_by_round(self) -> Sequence[float]:
        return [float(value) for value in self["seconds"]["by_round"]]

    @property
    def failures(self) -> Sequence[Mapping[str, Any]]:
        return list(self["failures"])

    def check(self) -> None:
        """Raise ValueError if the values that every table shows are missing or of another type."""
        check_result(self, VERSION)


def failure_summary(result: Result) -> str:
    """Return one sentence about the replies that a run did not get."""
    first = result.failures[0]
    clients = sorted({str(failure["client"]) for failure in result.failures})
    names = ", ".join(clients[:5]) + (", ..." if len(clients) > 5 else "")
    return (
        f"{len(result.failures)} replies of {len(clients)} clients ({names}) were missing or invalid, the first from "
        f"client {first['client']} in round {first['round']}, step '{'+'.join(first['steps'])}': {first['message']}"
    )


def _accuracy_summary(raw: Mapping[str, Any]) -> AccuracySummary:
    return AccuracySummary(
        raw["final"],
        raw["best"],
        raw.get("best_round"),
        raw.get("std_over_clients"),
        raw.get("by_client", ()),
        raw.get("by_round", ()),
    )
