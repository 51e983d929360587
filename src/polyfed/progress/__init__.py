"""Progress of runs: bars in terminals and notebooks, lines elsewhere."""

from polyfed.progress.board import (
    ProgressBoard,
    ProgressObserver,
    ProgressSnapshot,
    RunProgress,
    snapshot_of,
    snapshot_until,
)
from polyfed.progress.python_progress import RunObserver, progress_observers

__all__ = [
    "ProgressBoard",
    "ProgressObserver",
    "ProgressSnapshot",
    "RunObserver",
    "RunProgress",
    "progress_observers",
    "snapshot_of",
    "snapshot_until",
]
