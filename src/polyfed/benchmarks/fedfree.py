"""What FedFree's server costs: its seconds in a round divided by the seconds that the clients train in it.

Server seconds are all that is not waiting for clients: reading and checking their layers, Eq. 3 to 5 on Gaussian
inputs, entropies, and packing what goes back. On the serial engine nothing runs beside anything else.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

from polyfed import api
from polyfed.benchmarks.synthetic import images
from polyfed.config import parse
from polyfed.runs.records import RoundRecord

CLIENTS, SAMPLES, SIZE, ROUNDS = 20, 6000, 28, 8
VARIANTS: dict[str, dict[str, Any]] = {"sampled": {}, "expected": {"pseudo": "expected"}}


def measure() -> dict[str, Any]:
    """Figures: server seconds over clients' seconds, the median over rounds, for drawn inputs and in closed form."""
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, fields in VARIANTS.items():
            rounds = _rounds(fields, Path(folder) / name)
            figures[f"ratio_{name}"] = statistics.median(r["server"] / r["clients"] for r in rounds)
            figures[f"server_seconds_{name}"] = statistics.median(r["server"] for r in rounds)
            figures[f"client_seconds_{name}"] = statistics.median(r["clients"] for r in rounds)
    settings = {
        "clients": CLIENTS,
        "samples": SAMPLES,
        "image": SIZE,
        "batch": 10,
        "group": "tiny4",
        "rounds": ROUNDS,
    }
    return {"figures": {name: round(value, 4) for name, value in figures.items()}, "settings": settings}


class _Seconds:
    """An observer that keeps what every round took."""

    def __init__(self) -> None:
        self.rounds: list[dict[str, float]] = []

    def started(self, config: object, folder: Path, done: int) -> None:
        pass

    def round_done(self, record: RoundRecord) -> None:
        self.rounds.append(dict(record.seconds))

    def note(self, sentence: str) -> None:
        pass


def _rounds(fields: dict[str, Any], folder: Path) -> list[dict[str, float]]:
    config = parse(
        {
            "method": {"name": "fedfree", **fields},
            "clients": CLIENTS,
            "rounds": ROUNDS + 1,
            "data": {"partition": {"scheme": "iid"}},
            "models": {"group": "tiny4"},
            "evaluate": {"personal": False, "global": False},
            "engine": {"name": "serial"},
        }
    )
    seen = _Seconds()
    data = images("fedfree", SAMPLES, SIZE, folder / "cache")
    api.run_config(config, out=folder / "run", data=data, observers=[seen])
    return seen.rounds[1:]  # the first is warm-up
