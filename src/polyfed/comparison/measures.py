"""Numeric columns of a comparison: how each is read from a result, and in which unit it is shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from polyfed.errors import InputError, nearest
from polyfed.runs.records import KINDS, Result

MIB = 1 << 20
ACCURACY, WORST_DECILE, CLIENT_MEAN = "accuracy", "worst_decile", "client_mean"
ALWAYS_RECORDED = (WORST_DECILE, CLIENT_MEAN)  # shown only on request


class MetricStyle(NamedTuple):
    """How a metric is called, and whether a lower value is better."""

    heading: str
    lower_is_better: bool = False
    per_cent: bool = True


METRICS: Mapping[str, MetricStyle] = {
    ACCURACY: MetricStyle("accuracy"),
    "balanced_accuracy": MetricStyle("balanced accuracy"),
    "macro_f1": MetricStyle("macro F1"),
    "auroc": MetricStyle("AUROC"),
    "log_loss": MetricStyle("log loss", lower_is_better=True, per_cent=False),
    "calibration_error": MetricStyle("calibration error", lower_is_better=True),
    WORST_DECILE: MetricStyle("worst 10 %"),
    CLIENT_MEAN: MetricStyle("mean over clients"),
}


@dataclass(frozen=True)
class Measure:
    """One column. `kind` is that of accuracy, or '' for a cost."""

    key: str
    heading: str
    kind: str = ""
    metric: str = ""
    best: bool = False  # the best round instead of the last one

    @property
    def digits(self) -> int:
        if self.kind:
            return 2 if METRICS[self.metric].per_cent else 3
        return 1 if self.key == "seconds" else 3

    @property
    def lower_is_better(self) -> bool:
        return bool(self.kind) and METRICS[self.metric].lower_is_better

    @property
    def _scale(self) -> float:
        return 100.0 if METRICS[self.metric].per_cent else 1.0

    def read(self, result: Result) -> float | None:
        """Return the value of a run in the unit of the table: per cent, nats, MiB or seconds."""
        if not self.kind:
            costs = {"mib_up": result.upload_bytes, "mib_down": result.download_bytes}
            return costs[self.key] / MIB if self.key in costs else float(result.seconds)
        value: float | None
        if self.metric == ACCURACY:
            accuracy = result.accuracy[self.kind]
            value = None if accuracy is None else float(accuracy.best if self.best else accuracy.final)
        else:
            metric = result.metrics.get(self.kind, {}).get(self.metric)
            value = None if metric is None else metric.final
        return None if value is None else self._scale * value

    def read_clients(self, result: Result) -> Sequence[float | None]:
        """Return the values of the clients after the last round; empty if they are not recorded."""
        if self.metric == ACCURACY:
            accuracy = result.accuracy[self.kind]
            values = () if accuracy is None or self.best else accuracy.by_client
        else:
            metric = result.metrics.get(self.kind, {}).get(self.metric)
            values = () if metric is None else metric.by_client
        return [None if value is None else self._scale * value for value in values]


ACCURACIES = tuple(
    Measure(f"{kind}_{which}", f"{kind} {which}", kind, ACCURACY, which == "best")
    for kind in KINDS
    for which in ("final", "best")
)
COSTS = (Measure("mib_up", "MiB up"), Measure("mib_down", "MiB down"), Measure("seconds", "seconds"))


def columns(results: Iterable[Result], metric: str | None = None) -> tuple[Measure, ...]:
    """Return the columns for some runs: accuracies and the metrics that the runs recorded, or one metric only."""
    recorded = {name for result in results for by in result.metrics.values() for name in by}
    if metric is None:
        names = [name for name in METRICS if name in recorded and name not in ALWAYS_RECORDED]
        return (*ACCURACIES, *(_metric(kind, name) for name in names for kind in KINDS), *COSTS)
    if metric not in METRICS:
        raise InputError(f"there is no metric '{metric}'; {nearest(metric, METRICS)}")
    if metric == ACCURACY:
        return (*ACCURACIES, *COSTS)
    if metric not in recorded:
        raise InputError(f"no run recorded '{metric}'; run with evaluate.metrics=[{metric}]")
    return (*(_metric(kind, metric) for kind in KINDS), *COSTS)


def _metric(kind: str, name: str) -> Measure:
    return Measure(f"{kind}_{name}", f"{kind} {METRICS[name].heading}", kind, name)


def compared_measures(measures: Sequence[Measure]) -> tuple[Measure, ...]:
    """Return the columns with differences to a baseline, the common test set first."""
    metrics = [one for one in measures if one.kind and not one.best]
    first = metrics[0].metric if metrics else ""
    return tuple(sorted((one for one in metrics if one.metric == first), key=lambda one: one.kind != "global"))
