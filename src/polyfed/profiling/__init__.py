"""Where the time of a run goes: spans, the table of parts, and a trace in the Chrome trace event format."""

from __future__ import annotations

from polyfed.profiling.recorder import PARTS, Recorder, current, recording, span, spans, timed
from polyfed.profiling.run_profile import profiled, saved

__all__ = ["PARTS", "Recorder", "current", "profiled", "recording", "saved", "span", "spans", "timed"]
