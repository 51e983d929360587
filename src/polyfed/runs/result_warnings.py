"""Python warnings about the result of a run."""

from __future__ import annotations

import warnings

from polyfed.runs.noise_level import noise_messages
from polyfed.runs.records import Result, failure_summary


def warn_of_problems(result: Result) -> None:
    """Warn the caller of `run` or `resume` of missing replies, and of noise that is stronger than the signal."""
    if result.failures:
        warnings.warn(f"{failure_summary(result)}; see result['failures']", stacklevel=3)
    for message in noise_messages(result):
        warnings.warn(message, stacklevel=3)
