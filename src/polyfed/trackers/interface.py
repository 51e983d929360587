"""What a tracker is: three calls. Anything with these methods can be named under `track:`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol

from polyfed.runs.records import RoundRecord


class Tracker(Protocol):
    """One per run, made without arguments. Whatever it raises is noted, and it is not called again."""

    needs: ClassVar[tuple[str, ...]]  # modules that must be installed, looked for before the run

    def start(self, name: str, folder: Path, config: Mapping[str, Any], done: int) -> None:
        """A run begins, or goes on after `done` rounds. Files of its own belong below `folder`."""

    def log(self, number: int, values: Mapping[str, float]) -> None:
        """What a round gave, such as `accuracy/personal`, `loss`, `bytes/up`."""

    def finish(self, state: str) -> None:
        """The run ended: `finished`, `stopped` or `failed`."""


def metrics_of(record: RoundRecord) -> dict[str, float]:
    """Return the metrics of one round under the names that all trackers use."""
    metrics = {f"accuracy/{kind.replace(' ', '-')}": one.value for kind, one in record.accuracy.items()}
    if record.loss is not None:
        metrics["loss"] = record.loss
    metrics |= {"bytes/up": record.upload_bytes, "bytes/down": record.download_bytes}
    metrics |= {f"seconds/{part}": seconds for part, seconds in record.seconds.items()}
    metrics["failures"] = len(record.failures)
    return {name: float(value) for name, value in metrics.items()}
