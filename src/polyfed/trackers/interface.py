"""Interface of trackers: a class with three methods, named in the config under `track`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol

from polyfed.runs.records import RoundRecord


class Tracker(Protocol):
    """A tracker of one run, created without arguments. After its first error it is not called again."""

    needs: ClassVar[tuple[str, ...]]  # packages that must be installed; checked before the run

    def start(self, name: str, folder: Path, config: Mapping[str, Any], done: int) -> None:
        """Start a run, or resume it after `done` rounds. Write files below `folder`."""

    def log(self, number: int, values: Mapping[str, float]) -> None:
        """Log the metrics of a round, such as `accuracy/personal`, `loss` and `bytes/up`."""

    def finish(self, state: str) -> None:
        """End the run. The state is `finished`, `stopped` or `failed`."""


def metrics_of(record: RoundRecord) -> dict[str, float]:
    """Return the metrics of one round under the names that all trackers use."""
    metrics = {f"accuracy/{kind.replace(' ', '-')}": one.value for kind, one in record.accuracy.items()}
    for kind, by in record.metrics.items():
        values = {f"{name}/{kind.replace(' ', '-')}": one.value for name, one in by.items()}
        metrics |= {name: value for name, value in values.items() if value is not None}
    if record.loss is not None:
        metrics["loss"] = record.loss
    metrics |= {"bytes/up": record.upload_bytes, "bytes/down": record.download_bytes}
    metrics |= {f"seconds/{part}": seconds for part, seconds in record.seconds.items()}
    metrics["failures"] = len(record.failures)
    return {name: float(value) for name, value in metrics.items()}
