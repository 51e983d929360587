"""Cores and memory of this process, with the standard library only."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import sys
from collections.abc import Iterator


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def paused_garbage_collection() -> Iterator[None]:
    """Pause the collection of reference cycles during imports, which create many objects and free hardly any."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def peak_rss() -> int:
    """Return the peak resident memory of this process in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
