"""Cost of InCo Aggregation: the time of its filter as a fraction of the round's time."""

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
RULES = ("released", "theorem")


@dataclass(frozen=True)
class _TimedFilter(ServerFilter):
    """A filter that records the seconds of each call."""

    inner: ServerFilter
    seconds: list[float] = field(default_factory=list)

    def apply(self, server: Server, update: Update) -> Weights:
        started = time.perf_counter()
        change = self.inner.apply(server, update)
        self.seconds.append(time.perf_counter() - started)
        return change


def measure() -> dict[str, Any]:
    """Return the median fraction of the filter in a round, with the rule of the released code and of the theorem."""
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder, one_torch_thread():
        for rule in RULES:
            rounds, filtering = _rounds(rule, Path(folder) / rule)
            fractions = [f / r for f, r in zip(filtering, rounds, strict=True)]
            figures[f"share_{rule}"] = round(statistics.median(fractions), 5)
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
    """Return the seconds of every round on the pool, and of the filter in each round."""
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
    federation = simulation.build_federation(config, data=data)
    roster = federation.profiles()
    server = federation.check(roster)
    engine = make_engine(federation, folder / "states", folder / "federation")
    assert server.filter is not None  # the config has one
    server.filter = timed = _TimedFilter(server.filter)
    loop = RoundLoop(federation.method, server, Door(federation.method, engine, roster))
    try:
        seconds = [loop.run_round(number).seconds for number in range(1, REPEATS + 2)]
    finally:
        engine.close()
    return seconds[1:], timed.seconds[1:]  # the first round is warm-up
