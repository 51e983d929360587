"""Evaluations in the same visit as a client's last step before them, which saves a call and the wait at its end.

A method does not say which call is the last one before an evaluation, so it is predicted from the previous evaluated
round. A result is used only if the client still has the evaluated state when the evaluation is due. Otherwise the
client is evaluated again, so a wrong prediction costs time and changes no result.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyfed.core.engine import Call
from polyfed.core.method import Method, Outgoing


@dataclass(frozen=True)
class _Result:
    """The encoded reply of an evaluation, with what was measured and the version of the client's state."""

    version: int
    measures: tuple[str, ...]
    metrics: tuple[str, ...]
    frame: bytes


class EarlyEvaluations:
    """What calls measure besides running their steps, and the results that evaluations can use."""

    def __init__(self, method: Method, enabled: bool) -> None:
        # a client that adopts a message for its evaluation has to wait for it
        self._enabled = enabled and type(method).adopt is Method.adopt and not method.predicts_from_published()
        self._moments: dict[int, tuple[str, ...]] = {}  # measures by the number of calls before, in the last round
        self._next_moments: dict[int, tuple[str, ...]] = {}  # the same in this round
        self._wanted: tuple[str, ...] = ()
        self._metrics: tuple[str, ...] = ()
        self._calls = 0  # of this round, so far
        self._results: dict[str, _Result] = {}  # by client

    def begin_round(self, measures: tuple[str, ...], metrics: tuple[str, ...]) -> None:
        """Start a round, or an attempt to repeat it, that will evaluate `measures`."""
        self._moments, self._next_moments = self._next_moments or self._moments, {}
        self._wanted, self._metrics, self._calls = measures, metrics, 0
        self._results = {}

    def next_call(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the measures and metrics that the next call should evaluate. Both are empty in most calls."""
        self._calls += 1
        measures = self._moments.get(self._calls, ())
        if not measures or not set(measures) <= set(self._wanted):
            return (), ()
        return measures, self._metrics

    def add(self, call: Call, client: str, frame: bytes) -> None:
        """Add the reply of an evaluation in a call whose reply was accepted."""
        if frame:
            self._results[client] = _Result(call.number, call.measures, call.metrics, frame)

    def evaluated(self, measures: tuple[str, ...], published: Outgoing) -> None:
        """Record that an evaluation is due now, for the next round."""
        if self._enabled and not published.shared and not published.each:
            self._next_moments[self._calls] = measures

    def result(self, client: str, version: int, measures: tuple[str, ...], metrics: tuple[str, ...]) -> bytes | None:
        """Return the reply of an evaluation of a client's current state, or None if there is none."""
        result = self._results.get(client)
        if result is None or (result.version, result.measures, result.metrics) != (version, measures, metrics):
            return None
        return result.frame
