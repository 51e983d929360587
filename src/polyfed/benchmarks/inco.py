"""What InCo Aggregation costs: the time that its filter takes, as a share of the round it is in."""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polyfed.benchmarks.synthetic import images
from polyfed.config import parse
from polyfed.core.door import Door
from polyfed.core.filter import ServerFilter, Update
from polyfed.core.payload import Weights
from polyfed.core.rounds import RoundLoop, one_torch_thread
from polyfed.core.server import Server
from polyfed.federation import simulation
from polyfed.federation.engine_factory import make_engine

CLIENTS, SAMPLES, SIZE, REPEATS = 10, 800, 28, 8
RULES = ("abs_ref", "theorem")


@dataclass(frozen=True)
class _Timed(ServerFilter):
    """A filter, with a note of how long it took each time."""

    inner: ServerFilter
    seconds: list[float] = field(default_factory=list)

    def apply(self, server: Server, update: Update) -> Weights:
        started = time.perf_counter()
        change = self.inner.apply(server, update)
        self.seconds.append(time.perf_counter() - started)
        return change


def measure() -> dict[str, Any]:
    """Figures: the filter's seconds over the round's, median over rounds, by the released code and by the theorem."""
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder, one_torch_thread():
        for rule in RULES:
            rounds, filtering = _rounds(rule, Path(folder) / rule)
            shares = [f / r for f, r in zip(filtering, rounds, strict=True)]
            figures[f"share_{rule}"] = round(statistics.median(shares), 5)
            figures[f"filter_seconds_{rule}"] = round(statistics.median(filtering), 5)
            figures[f"round_seconds_{rule}"] = round(statistics.median(rounds), 4)
    settings = {
        "clients": CLIENTS,
        "samples": SAMPLES,
        "image": SIZE,
        "batch": 10,
        "epochs": 1,
        "group": "tiny-resnets",
        "splitting": "stage",
        "repeats": REPEATS,
    }
    return {"figures": figures, "settings": settings}


def _rounds(rule: str, folder: Path) -> tuple[list[float], list[float]]:
    """Seconds of every round on the pool, and of the filter in it."""
    config = parse(
        {
            "method": "fedavg",
            "splitting": "stage",
            "server_filter": {"name": "inco", "rule": rule},
            "models": {"group": "tiny-resnets"},
            "clients": CLIENTS,
            "data": {"partition": {"scheme": "iid"}},
        }
    )
    data = images("inco", SAMPLES, SIZE, folder / "cache")
    made = simulation.build_federation(config, data=data)
    roster = made.profiles()
    server = made.check(roster)
    engine = make_engine(made, folder / "states", folder / "federation")
    assert server.filter is not None  # the config has one
    server.filter = timed = _Timed(server.filter)
    loop = RoundLoop(made.method, server, Door(made.method, engine, roster))
    try:
        seconds = [loop.run_round(number).seconds for number in range(1, REPEATS + 2)]
    finally:
        engine.close()
    return seconds[1:], timed.seconds[1:]  # the first is warm-up
