"""What a tracker is: three calls. Anything with these methods can be named under `track:`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol


class Tracker(Protocol):
    """One per run, made without arguments. Whatever it raises is noted, and it is not called again."""

    needs: ClassVar[tuple[str, ...]]  # modules that must be installed, looked for before the run

    def start(self, name: str, folder: Path, config: Mapping[str, Any], done: int) -> None:
        """A run begins, or goes on after `done` rounds. Files of its own belong below `folder`."""

    def log(self, number: int, values: Mapping[str, float]) -> None:
        """What a round gave, such as `accuracy/personal`, `loss`, `bytes/up`."""

    def finish(self, state: str) -> None:
        """The run ended: `finished`, `stopped` or `failed`."""


def values_of(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of one round, by the names that all trackers use."""
    values = {f"accuracy/{name.replace(' ', '-')}": facts["value"] for name, facts in record["accuracy"].items()}
    if record["loss"] is not None:
        values["loss"] = record["loss"]
    values.update({f"bytes/{way}": sum(record[way].values()) for way in ("up", "down")})
    values.update({f"seconds/{part}": seconds for part, seconds in record["seconds"].items()})
    values["failures"] = len(record["failures"])
    return {name: float(value) for name, value in values.items()}


def settings(config: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, Any]]:
    """The config's leaves by dotted key."""
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from settings(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value
