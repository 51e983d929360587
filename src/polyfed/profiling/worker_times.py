"""Times that workers send: how they are checked, placed on the time axis, and compared within a call."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from polyfed.errors import PayloadError

Span = tuple[str, str, float, float]  # part, name, start and seconds
MAX_NAME = 200  # characters


@dataclass
class WorkerTimes:
    """Seconds by part, and spans of one worker."""

    parts: dict[str, float] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    last: float = 0.0  # end of the last span

    def add_part(self, part: str, seconds: float) -> None:
        self.parts[part] = self.parts.get(part, 0.0) + seconds

    def add(
        self, parts: Mapping[str, float], spans: Sequence[Span], end: float | None, *, keep: bool
    ) -> tuple[float, float] | None:
        """Add times. Return when they began and ended, or None if there are no spans."""
        for part, seconds in parts.items():
            self.add_part(part, seconds)
        if not spans:
            return None
        first, last = min(start for _, _, start, _ in spans), max(start + seconds for _, _, start, seconds in spans)
        shift = 0.0
        if end is not None:  # a worker does one thing at a time: no span begins before the last one ended
            shift = max(end - last, self.last - first)
        self.last = last + shift
        if keep:
            self.spans += [(part, name, start + shift, seconds) for part, name, start, seconds in spans]
        return first + shift, last + shift


@dataclass
class CallTimes:
    """When the workers of one call began and ended."""

    number: int | None = None
    began: float = math.inf
    ended: dict[int, float] = field(default_factory=dict)  # by worker

    def add(self, worker: int, began: float, ended: float) -> None:
        self.began = min(self.began, began)
        self.ended[worker] = max(ended, self.ended.get(worker, ended))

    def wait_of(self, worker: int) -> tuple[float, float] | None:
        """Return when a worker began and ended to wait for the last one. Return None if it did not wait."""
        if not self.ended:
            return None
        began, ended = self.ended.get(worker, self.began), max(self.ended.values())
        return (began, ended) if began < ended else None


def wait_span(began: float, ended: float) -> Span:
    return ("stragglers", "wait for stragglers", began, ended - began)


def read_times(raw: object, parts: Container[str], limit: int) -> tuple[dict[str, float], list[Span]]:
    """Check the times that a worker sent. Raise PayloadError if they are anything but names and numbers."""
    if not isinstance(raw, Mapping) or not isinstance(raw.get("parts"), Mapping):
        raise PayloadError("the profile of a worker is malformed: 'parts' is not a mapping")
    spans = raw.get("spans")
    if not isinstance(spans, list | tuple) or len(spans) > limit:
        raise PayloadError(f"the profile of a worker is malformed: 'spans' is not a list of at most {limit} spans")
    seconds = {_part(part, parts): _number(value, "seconds") for part, value in raw["parts"].items()}
    return seconds, [_span(entry, parts) for entry in spans]


def _span(raw: Any, parts: Container[str]) -> Span:
    if not isinstance(raw, list | tuple) or len(raw) != 4 or not isinstance(raw[1], str):
        raise PayloadError(f"the profile of a worker is malformed: {str(raw)[:40]} is not a span")
    return _part(raw[0], parts), raw[1][:MAX_NAME], _number(raw[2], "start"), _number(raw[3], "duration")


def _part(value: Any, parts: Container[str]) -> str:
    if not isinstance(value, str) or value not in parts:
        raise PayloadError(f"the profile of a worker is malformed: unknown part {str(value)[:40]!r}")
    return value


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise PayloadError(f"the profile of a worker is malformed: {name} is {str(value)[:40]}, not a number from 0")
    return float(value)
