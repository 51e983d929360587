"""Accuracies and metrics of a round, from what clients measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from polyfed.config import EvaluateConfig
from polyfed.core.evaluation import Evaluation
from polyfed.core.method import Method
from polyfed.runs.records import Accuracy, Metric
from polyfed.training.metrics import PROBABILITY_METRICS

WORST_DECILE = "worst_decile"  # mean accuracy of the worst 10 % of clients
CLIENT_MEAN = "client_mean"  # personal accuracy as a plain mean over clients, where `accuracy` weighs by test samples


def requested(settings: EvaluateConfig) -> tuple[str, ...]:
    """Return the metrics that a config asks for besides accuracy."""
    return tuple(dict.fromkeys(name for name in settings.metrics if name != "accuracy"))


def notes(settings: EvaluateConfig, method: Method) -> list[str]:
    """Return a sentence about metrics that the method's predictions do not allow."""
    omitted = [name for name in requested(settings) if name in PROBABILITY_METRICS]
    if not omitted or method.predicts_probabilities():
        return []
    ways = [way for way in method.also_predict() if method.predicts_probabilities(way)]
    instead = f"; they are measured for predictions by {' and '.join(ways)}" if ways else ""
    return [f"{', '.join(omitted)}: not measured for {method.name}, whose predictions are not probabilities{instead}"]


def measured(evaluation: Evaluation) -> tuple[dict[str, Accuracy], dict[str, dict[str, Metric]]]:
    """Return accuracies and metrics by kind. A kind without test samples at any client is left out."""
    accuracies: dict[str, Accuracy] = {}
    metrics: dict[str, dict[str, Metric]] = {}
    for kind, counts in evaluation.counts.items():
        if not any(total for _, total in counts.values()):
            continue
        by_client = [correct / total if total else None for correct, total in counts.values()]
        # personal: weighted by held-out samples; global: every client has the same samples, so a plain mean
        personal = kind.startswith("personal")
        weights = [total if personal else min(total, 1) for _, total in counts.values()]
        known = [value for value in by_client if value is not None]
        pooled = sum(c for c, _ in counts.values()) / max(1, sum(n for _, n in counts.values()))
        accuracies[kind] = Accuracy(pooled if personal else sum(known) / max(1, len(known)), by_client)
        metrics[kind] = {WORST_DECILE: Metric(worst_decile(known))}
        if personal:
            metrics[kind][CLIENT_MEAN] = Metric(statistics.fmean(known))
        for name, values in evaluation.metrics.get(kind, {}).items():
            clients = list(values.values())
            metrics[kind][name] = Metric(_weighted_mean(clients, weights), clients)
    return accuracies, metrics


def worst_decile(accuracies: Sequence[float]) -> float:
    """Return the mean accuracy of the worst 10 % of clients, at least one client."""
    return statistics.fmean(sorted(accuracies)[: max(1, math.ceil(len(accuracies) / 10))])


def _weighted_mean(values: Sequence[float | None], weights: Sequence[int]) -> float | None:
    known = [(value, weight) for value, weight in zip(values, weights, strict=True) if value is not None and weight]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else None


def pooled_confusion(evaluation: Evaluation) -> dict[str, list[list[int]]]:
    """Return confusion matrices by kind, summed over clients."""
    return {kind: torch.stack(list(by.values())).sum(0).tolist() for kind, by in evaluation.confusion.items()}


def confusion_by_client(evaluation: Evaluation, clients: Sequence[str]) -> Mapping[str, Tensor]:
    """Return confusion matrices by kind, one per client in client order; a client without one has zeros."""
    stacked = {}
    for kind, by_client in evaluation.confusion.items():
        zeros = torch.zeros_like(next(iter(by_client.values())))
        stacked[kind] = torch.stack([by_client.get(client, zeros) for client in clients])
    return stacked
