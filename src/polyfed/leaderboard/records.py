"""The data file of the leaderboard: one record per scenario, with the numbers and hashes of every run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polyfed.errors import InputError

DATA_FILE = Path(__file__).parent / "leaderboard.json"


@dataclass(frozen=True)
class Measured:
    """The numbers of one run: final accuracies in per cent, and bytes of all clients and rounds together."""

    seed: int
    state_hash: str
    global_: float | None
    personal: float | None
    up: int
    down: int


@dataclass(frozen=True)
class Gain:
    """Mean difference to local training in points, with its 95 % interval over seeds."""

    mean: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Row:
    """A method in a scenario."""

    method: str
    models: str  # other models than those of the scenario, or empty
    overrides: tuple[str, ...]  # of the scenario's preset
    rate: float  # learning rate
    runs: tuple[Measured, ...]
    gains: Mapping[str, Gain] = field(default_factory=dict)  # by 'global' and 'personal'; none for local training
    work: float | None = None  # estimated FLOPs of training, relative to local training

    def mean(self, name: str) -> float | None:
        """Return the mean over runs of a number of `Measured`, or None if no run has it."""
        values = [value for run in self.runs if (value := getattr(run, name)) is not None]
        return sum(values) / len(values) if values else None


@dataclass(frozen=True)
class ScenarioRecord:
    """The rows of a scenario, the methods that cannot run in it, and how many runs are missing."""

    scenario: str
    rows: tuple[Row, ...]
    excluded: Mapping[str, str]
    missing: Mapping[str, int] = field(default_factory=dict)
    clients_per_round: int = 0
    rounds: int = 0


@dataclass(frozen=True)
class Leaderboard:
    """All scenarios, with the command and the versions that measured them."""

    scenarios: Mapping[str, ScenarioRecord]
    command: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the text of the data file."""
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"


def read_leaderboard(path: Path = DATA_FILE) -> Leaderboard:
    """Read a data file. Raise InputError if it is not readable or not a leaderboard."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        scenarios = {name: _scenario(record) for name, record in raw["scenarios"].items()}
        return Leaderboard(scenarios, raw["command"], raw["versions"])
    except OSError as error:
        raise InputError(f"the leaderboard {path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is no data file of a leaderboard: {type(error).__name__} {error}") from None


def _scenario(raw: dict[str, Any]) -> ScenarioRecord:
    rows = tuple(
        Row(
            row["method"],
            row["models"],
            tuple(row["overrides"]),
            float(row["rate"]),
            tuple(Measured(**run) for run in row["runs"]),
            {kind: Gain(**gain) for kind, gain in row["gains"].items()},
            row["work"],
        )
        for row in raw["rows"]
    )
    return ScenarioRecord(**{**raw, "rows": rows})
