"""What this machine gives to a process: cores and memory. Needs nothing but Python."""

from __future__ import annotations

import os
import resource
import sys


def available_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def peak_rss() -> int:
    """Peak resident bytes of this process."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
