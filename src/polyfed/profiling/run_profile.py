"""The profile of one run: from its start to the table and the trace."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from polyfed.profiling.recorder import Recorder, current, recording
from polyfed.profiling.table import format_table
from polyfed.profiling.trace import trace_json

FINISHED = (
    "Nothing was profiled, because the run had already finished. Use --force (in Python force=True) to run it again."
)


@contextlib.contextmanager
def profiled(enabled: bool, show: Callable[[str], None]) -> Iterator[None]:
    """Profile the run inside the context, if enabled, and pass the table of its time to `show`."""
    recorder = Recorder() if enabled else None
    with recording(recorder):
        try:
            yield
        finally:
            if recorder is not None and recorder.finished:
                show(format_table(recorder))
    if recorder is not None and not recorder.finished:
        show(FINISHED)


@contextlib.contextmanager
def saved(write: Callable[[str], None]) -> Iterator[None]:
    """End the profile of a run after the context, if it is profiled, and pass the trace to `write`."""
    try:
        yield
    finally:
        recorder = current()
        if recorder is not None:
            recorder.finish()
            write(trace_json(recorder))
