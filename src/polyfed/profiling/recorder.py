"""The recorder of a profile. Without one, `span` and `timed` return a shared context that does nothing.

The time of a part is measured without the spans inside it, so the parts of a thread add up to its wall time.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any, TypeVar

from polyfed.profiling.worker_times import CallTimes, Span, WorkerTimes, read_times, wait_span

Item = TypeVar("Item")
# parts and their names in the table
PARTS = {
    "startup": "start-up",
    "train": "training steps",
    "evaluate": "evaluation",
    "load": "create and load clients",
    "encode": "encode",
    "decode": "decode",
    "write": "write states and records",
    "transfer": "send and receive",
    "server": "server work",
    "stragglers": "wait for stragglers",
    "wait": "wait",
    "python": "Python and rest",
}
MAX_SPANS = 200_000  # in one trace, about 25 MB; the table counts everything
WORKER_SPANS = 10_000  # in the times of one task


class _Timer:
    """The context of one span. `name` is None if only its time is counted."""

    __slots__ = ("_inner", "_name", "_outer", "_part", "_recorder", "_started")

    def __init__(self, recorder: Recorder, part: str, name: str | None) -> None:
        self._recorder, self._part, self._name = recorder, part, name
        self._inner = 0.0  # seconds of the spans inside

    def __enter__(self) -> None:
        self._outer = self._recorder.innermost()
        self._recorder.set_innermost(self)
        self._started = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        seconds = time.perf_counter() - self._started
        self._recorder.set_innermost(self._outer)
        if self._outer is not None:
            self._outer._inner += seconds
        self._recorder.add(self._part, self._name, self._started, seconds, seconds - self._inner)


class Recorder:
    """Times of one process by part and thread, and the times that its workers sent."""

    def __init__(self, limit: int = MAX_SPANS) -> None:
        self.started = time.perf_counter()
        self.seconds = 0.0  # wall time, once `finish` was called
        self.parts: dict[str, dict[str, float]] = {}  # seconds by thread and part
        self.spans: dict[str, list[Span]] = {}  # by thread
        self.workers: dict[int, WorkerTimes] = {}
        self.left_out = 0  # spans beyond the limit
        self._limit = limit
        self._stored = 0
        self._local = threading.local()
        self._thread = threading.current_thread()
        self._call = CallTimes()

    @property
    def finished(self) -> bool:
        return self.seconds > 0

    def innermost(self) -> _Timer | None:
        """Return the innermost open span of this thread."""
        timer: _Timer | None = getattr(self._local, "innermost", None)
        return timer

    def set_innermost(self, timer: _Timer | None) -> None:
        self._local.innermost = timer

    def add(self, part: str, name: str | None, started: float, seconds: float, own: float) -> None:
        """Add a span of this thread. `own` is its time without the spans inside it."""
        thread = self.thread_name()
        parts = self.parts.setdefault(thread, {})
        parts[part] = parts.get(part, 0.0) + max(0.0, own)  # rounding may make it negative
        if name is not None and self._has_room(1):
            self.spans.setdefault(thread, []).append((part, name, started, seconds))

    def thread_name(self) -> str:
        """Return the name of this thread: 'main' for the thread that started the recorder."""
        thread = threading.current_thread()
        return "main" if thread is self._thread else thread.name

    def _has_room(self, count: int) -> bool:
        """Return whether the trace has room for spans, and count them."""
        if self._stored + count > self._limit:
            self.left_out += count
            return False
        self._stored += count
        return True

    # at a worker

    def take(self) -> dict[str, Any]:
        """Return the times since the last call as JSON values, and forget them."""
        times = {"parts": self.parts.get("main", {}), "spans": self.spans.get("main", [])}
        self.parts, self.spans, self._stored = {}, {}, 0
        return times

    # at the process that has workers

    def add_workers(self, count: int) -> None:
        """Declare workers 0 to `count - 1`, so that the table includes workers without tasks."""
        for index in range(count):
            self.workers.setdefault(index, WorkerTimes())

    def add_worker_times(
        self, index: int, raw: Mapping[str, Any], *, call: int | None = None, end: float | None = None
    ) -> None:
        """Add the times that a worker sent, of a task of `call` or of its set-up.

        `end` is when the worker finished, for workers on other machines, whose clocks differ from this one. Raise
        PayloadError if the times are not valid.
        """
        parts, spans = read_times(raw, PARTS, WORKER_SPANS)
        worker = self.workers.setdefault(index, WorkerTimes())
        interval = worker.add(parts, spans, end, keep=self._has_room(len(spans)))
        if call is not None and interval is not None:
            if call != self._call.number:
                self._finish_call()
                self._call = CallTimes(call)
            self._call.add(index, *interval)

    def _finish_call(self) -> None:
        """Add the time that workers waited for the last one of a call."""
        for index, worker in self.workers.items():
            waited = self._call.wait_of(index)
            if waited is not None:
                worker.add_part("stragglers", waited[1] - waited[0])
                if self._has_room(1):
                    worker.spans.append(wait_span(*waited))

    def finish(self) -> None:
        """End the profile. What the main thread and the workers did not measure is counted as the rest."""
        self._finish_call()
        self._call = CallTimes()
        self.seconds = time.perf_counter() - self.started
        main = self.parts.setdefault("main", {})
        main["python"] = main.get("python", 0.0) + self.seconds - sum(main.values())
        for worker in self.workers.values():
            worker.add_part("wait", self.seconds - sum(worker.parts.values()))


_CURRENT: ContextVar[Recorder | None] = ContextVar("recorder", default=None)
_NOTHING = contextlib.nullcontext()


def current() -> Recorder | None:
    """Return the recorder of this context, or None if nothing is profiled."""
    return _CURRENT.get()


@contextlib.contextmanager
def recording(recorder: Recorder | None) -> Iterator[None]:
    """Profile what runs inside the context with a recorder, or do not profile it if there is none."""
    token = _CURRENT.set(recorder)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def span(part: str, name: str) -> contextlib.AbstractContextManager[None]:
    """Count the time inside the context for a part, and show it in the trace."""
    recorder = _CURRENT.get()
    return _NOTHING if recorder is None else _Timer(recorder, part, name)


def timed(part: str) -> contextlib.AbstractContextManager[None]:
    """Count the time inside the context for a part, without a span in the trace: for what happens very often."""
    recorder = _CURRENT.get()
    return _NOTHING if recorder is None else _Timer(recorder, part, None)


def spans(part: str, name: str, items: Iterator[Item]) -> Iterator[Item]:
    """Return an iterator that counts the time to get each item for a part. What its user does is not counted."""
    return items if _CURRENT.get() is None else _spans(part, name, items)


def _spans(part: str, name: str, items: Iterator[Item]) -> Iterator[Item]:
    while True:
        with span(part, name):
            item = next(items, _NOTHING)
        if item is _NOTHING:
            return
        yield item  # type: ignore[misc]
