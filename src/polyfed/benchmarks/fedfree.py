"""Cost of FedFree's server: its time in a round divided by the clients' training time.

Server time is all time in which the server does not wait for clients: decoding and checking their layers, Eq. 3 to 5
on Gaussian inputs, entropies, and encoding the replies. On the serial engine nothing runs in parallel.
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
    """Return the median over rounds of server time over client time, for sampled inputs and in closed form."""
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


class _SecondsObserver:
    """Observer that collects the seconds of every round."""

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
    observer = _SecondsObserver()
    data = images("fedfree", SAMPLES, SIZE, folder / "cache")
    api.run_config(config, out=folder / "run", data=data, observers=[observer])
    return observer.rounds[1:]  # the first round is warm-up
