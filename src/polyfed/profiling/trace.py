"""Traces in the Chrome trace event format, which Perfetto and chrome://tracing open."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from polyfed.profiling.recorder import Recorder
from polyfed.profiling.table import columns_of
from polyfed.profiling.worker_times import Span

MAIN = 0  # process number of the main process; workers are numbered from 1


def trace_json(recorder: Recorder) -> str:
    """Return a finished profile as JSON: one process per worker, one track per thread, times in microseconds."""
    events: list[dict[str, Any]] = [_name("process_name", MAIN, 0, "main process")]
    for number, (thread, spans) in enumerate(sorted(recorder.spans.items(), key=lambda item: item[0] != "main")):
        events.append(_name("thread_name", MAIN, number, thread))
        events += _events(spans, MAIN, number, recorder.started)
    for index, worker in sorted(recorder.workers.items()):
        events.append(_name("process_name", index + 1, 0, f"worker {index}"))
        events += _events(worker.spans, index + 1, 0, recorder.started)
    trace = {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"seconds": recorder.seconds, "parts": columns_of(recorder), "left_out": recorder.left_out},
    }
    return json.dumps(trace)


def _name(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _events(spans: Iterable[Span], process: int, thread: int, started: float) -> Iterable[dict[str, Any]]:
    for part, name, start, seconds in sorted(spans, key=lambda span: (span[2], -span[3])):
        yield {
            "ph": "X",
            "name": name,
            "cat": part,
            "ts": 1e6 * (start - started),
            "dur": 1e6 * seconds,
            "pid": process,
            "tid": thread,
        }
