"""Statistics of one round: bytes, times, training losses and failures."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from polyfed.core.engine import Answer, TrainingStats


@dataclass
class RoundStats:
    """Cost and failures of one round. If a round is repeated, its attempts are added up."""

    up: dict[str, int] = field(default_factory=dict)  # bytes by field
    down: dict[str, int] = field(default_factory=dict)
    overhead_up: int = 0
    overhead_down: int = 0
    uploads: list[dict[str, object]] = field(default_factory=list)  # every accepted reply: sizes and shapes by field
    failures: list[dict[str, object]] = field(default_factory=list)
    notes: tuple[str, ...] = ()  # for the user
    trained: list[TrainingStats] = field(default_factory=list)
    client_seconds: float = 0.0  # sum over clients of the time their steps took
    call_seconds: float = 0.0  # time the server waited for replies
    evaluation_seconds: float = 0.0
    evaluation_wait_seconds: float = 0.0  # time the server waited for evaluations

    def task_loss(self) -> float | None:
        """Return the mean training loss of the task, weighted by samples. Return None if nothing was trained."""
        finite = [t for t in self.trained if math.isfinite(t.loss)]
        samples = sum(t.samples for t in finite)
        return sum(t.loss * t.samples for t in finite) / samples if samples and finite else None


class CallTimes:
    """Times of one call. The server's wait is divided between steps and the evaluations after them."""

    def __init__(self, stats: RoundStats) -> None:
        self._stats = stats
        self._waited_before = stats.call_seconds
        self._steps = self._evaluations = 0.0  # sums over clients

    def add(self, answer: Answer) -> None:
        self._steps += answer.seconds
        self._evaluations += answer.evaluation_seconds

    def close(self) -> None:
        """Count the share of the wait that evaluations took as evaluation."""
        if not self._evaluations:
            return
        waited = self._stats.call_seconds - self._waited_before
        share = waited * self._evaluations / (self._steps + self._evaluations)
        self._stats.call_seconds -= share
        self._stats.evaluation_seconds += share
        self._stats.evaluation_wait_seconds += share
