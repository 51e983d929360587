"""The reply of a client to an evaluation: counts of correct predictions and, if requested, other metrics.

Predictions and probabilities stay at the client. A reply holds for every measure, such as `personal`, a field of that
name with the counts, and a field such as `personal auroc` for each requested metric.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, int64

from polyfed.core.codec import decode
from polyfed.core.message_header import MessageHeader
from polyfed.core.method import Method
from polyfed.core.payload import Payload, Value
from polyfed.errors import PayloadError
from polyfed.training import Samples
from polyfed.training.metrics import (
    CONFUSION,
    PROBABILITY_METRICS,
    SCALAR_METRICS,
    compute_metric,
    confusion_matrix,
)
from polyfed.training.samples import EVALUATION_BATCH

MAX_SAMPLES = 10**12  # largest number of samples that an evaluation may report
UNBOUNDED = frozenset({"log_loss"})  # all other metrics are at most 1


@dataclass(frozen=True)
class EvaluationReply:
    """What one client measured, by measure such as `personal` or `global by head`."""

    counts: dict[str, tuple[int, int]] = field(default_factory=dict)  # correct predictions, samples
    metrics: dict[str, dict[str, float | None]] = field(default_factory=dict)  # None: not defined for these samples
    confusion: dict[str, Tensor] = field(default_factory=dict)  # true class by predicted class
    # every field but the counts, with size in bytes and shape: a client's metrics are uploads
    sizes: dict[str, int] = field(default_factory=dict)
    shapes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Way:
    """A way of predicting: a function that returns one score per class, and the metrics that are computed with it."""

    predict: Callable[[Tensor], Tensor]
    metrics: tuple[str, ...] = ()


def check_metrics(metrics: Sequence[str]) -> None:
    """Raise PayloadError for a metric that does not exist."""
    for metric in metrics:
        if metric not in (*SCALAR_METRICS, CONFUSION):
            raise PayloadError(f"unknown metric '{metric}'; known are {', '.join((*SCALAR_METRICS, CONFUSION))}")


def metrics_of_way(method: Method, way: str, metrics: Sequence[str]) -> tuple[str, ...]:
    """Return the metrics that a way of predicting allows; the way of `predict` is ''."""
    without_probabilities = not method.predicts_probabilities(way)
    return tuple(m for m in metrics if not (without_probabilities and m in PROBABILITY_METRICS))


@torch.no_grad()
def evaluate_predictions(ways: Mapping[str, Way], samples: Samples) -> dict[str, Value]:
    """Return the fields of the reply for ways of predicting, by name. All ways predict one batch, then the next."""
    correct: dict[str, list[Tensor]] = {name: [] for name in ways}
    scores: dict[str, list[Tensor]] = {name: [] for name in ways}
    for x, y in samples.batches(EVALUATION_BATCH):
        for name, way in ways.items():
            predicted = way.predict(x)
            correct[name].append((predicted.argmax(1) == y).sum())
            if way.metrics:
                scores[name].append(predicted)
    fields: dict[str, Value] = {}
    labels = samples.labels.cpu()
    for name, counts in correct.items():
        total = int(torch.stack(counts).sum()) if counts else 0  # read once: that waits for a device
        fields[name] = {"correct": total, "total": len(samples)}
        if scores[name]:
            fields |= _metrics(name, torch.cat(scores[name]).cpu(), labels, ways[name].metrics)
    return fields


def _metrics(name: str, scores: Tensor, labels: Tensor, metrics: Sequence[str]) -> dict[str, Value]:
    return {
        f"{name} {metric}": (
            confusion_matrix(scores, labels) if metric == CONFUSION else compute_metric(metric, scores, labels)
        )
        for metric in metrics
    }


def read_reply(
    frame: bytes, header: MessageHeader, names: Sequence[str], metrics: Sequence[str], classes: int
) -> EvaluationReply:
    """Decode and check a reply. It may hold these measures and metrics and nothing else."""
    payload = decode(frame, header)
    reply = EvaluationReply()
    requested = {f"{name} {metric}": (name, metric) for name in names for metric in metrics}
    for key in payload:
        if key not in names and key not in requested:
            raise PayloadError(f"an evaluation reports '{key[:40]}', which was not requested")
    for name in names:
        if name in payload:
            reply.counts[name] = _read_counts(payload[name])
    for key, (name, metric) in requested.items():
        if key not in payload:
            continue
        total = reply.counts.get(name, (0, 0))[1]
        if metric == CONFUSION:
            reply.confusion[name] = _read_confusion(payload.tensor(key), classes, total)
        else:
            reply.metrics.setdefault(name, {})[metric] = _read_metric(payload, key, metric)
        reply.sizes[key], reply.shapes[key] = header.sizes()[key], header.shapes()[key]
    return reply


def _read_counts(value: Value) -> tuple[int, int]:
    entry = Payload(value if isinstance(value, Mapping) else {})
    correct, total = entry.number("correct"), entry.number("total")
    if not 0 <= correct <= total <= MAX_SAMPLES or int(correct) != correct or int(total) != total:
        raise PayloadError(f"an evaluation reports {correct:g} correct predictions of {total:g} samples")
    return int(correct), int(total)


def _read_metric(payload: Payload, key: str, metric: str) -> float | None:
    if payload[key] is None:
        return None
    value = float(payload.number(key))
    if not math.isfinite(value) or value < 0 or (value > 1 and metric not in UNBOUNDED):
        raise PayloadError(f"an evaluation reports '{key}' as {value:g}")
    return value


def _read_confusion(matrix: Tensor, classes: int, total: int) -> Tensor:
    if matrix.shape != (classes, classes) or matrix.dtype != int64:
        raise PayloadError(f"a confusion matrix has the shape {tuple(matrix.shape)} and the type {matrix.dtype}")
    if int(matrix.min()) < 0 or int(matrix.sum()) != total:
        raise PayloadError(f"a confusion matrix counts {int(matrix.sum())} samples of {total}")
    return matrix
