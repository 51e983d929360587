"""Time per round of 20 idle clients on every engine, and in Flower's own simulation for comparison.

The engines take turns, and ratios are computed within a turn, so that other load on the machine affects all of them.
Flower's simulation keeps the processor busy between rounds, so it takes turns with the serial engine only. A real
federation over Flower takes seconds per round and one process per site, so it has few sites; it is compared with as
many serial clients.
"""

from __future__ import annotations

import contextlib
import importlib.util
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from polyfed.benchmarks.flower_simulation import Simulation
from polyfed.config import parse
from polyfed.core.door import Door
from polyfed.core.rounds import RoundLoop, initialise, one_torch_thread
from polyfed.federation import simulation
from polyfed.federation.engine_factory import make_engine

CLIENTS, WORKERS, ROUNDS, WARM = 20, 2, 60, 5
SITES, SITE_ROUNDS = 2, 3
OURS, SIMULATION = ("serial", "pool"), "flower_simulation"
LIMITS = {"pool": 1.6, "ray": 3.0}  # times serial
TASK = {
    "method": "no-work",
    "imports": ["polyfed.benchmarks.no_work"],
    "data": {"dataset": "digits", "partition": {"scheme": "iid"}},
    "evaluate": {"every": 1000, "personal": False, "global": False},
}


def measure() -> dict[str, Any]:
    """Return milliseconds per round, ratios to serial, start-up seconds, and whether the ratios are within limits."""
    flower, ray = (importlib.util.find_spec(name) is not None for name in ("flwr", "ray"))
    figures = _compare([*OURS, *(["ray"] if ray else [])])
    if flower and ray:
        simulated = _compare(["serial", SIMULATION])
        figures |= {name: value for name, value in simulated.items() if name.endswith(SIMULATION)}
    if flower:
        with tempfile.TemporaryDirectory() as folder, one_torch_thread():
            figures |= _deployment(Path(folder))
    settings = {"clients": CLIENTS, "workers": WORKERS, "rounds": ROUNDS, "sites": SITES, "site_rounds": SITE_ROUNDS}
    missing = [name for name, installed in (("flwr", flower), ("ray", ray)) if not installed]
    return {"figures": figures, "settings": {**settings, "limits": LIMITS, "not_installed": missing}}


def _compare(names: list[str]) -> dict[str, Any]:
    """Measure engines in turns. The first one is serial."""
    with tempfile.TemporaryDirectory() as folder, one_torch_thread(), contextlib.ExitStack() as stack:
        contestants: dict[str, IdleFederation | Simulation] = {}
        for name in names:
            engine = {"name": name} if name == "serial" else {"name": name, "workers": WORKERS}
            if name == SIMULATION:
                contestants[name] = Simulation(CLIENTS, WORKERS)
            else:
                contestants[name] = IdleFederation(engine, Path(folder) / name)
            stack.callback(contestants[name].close)
        turns = [{name: one.turn() for name, one in contestants.items()} for _ in range(WARM + ROUNDS)][WARM:]
    figures: dict[str, Any] = {}
    for name, contestant in contestants.items():
        figures[f"round_milliseconds_{name}"] = round(1000 * statistics.median(turn[name] for turn in turns), 2)
        figures[f"startup_seconds_{name}"] = round(contestant.startup, 2)
        ratio = statistics.median(turn[name] / turn["serial"] for turn in turns)
        if name != "serial":
            figures[f"ratio_{name}"] = round(ratio, 3)
        if name in LIMITS:
            figures[f"holds_{name}"] = ratio <= LIMITS[name]
    return figures


def _deployment(folder: Path) -> dict[str, Any]:
    """Measure a federation of few sites, and the serial engine with as many clients."""
    from polyfed.benchmarks import flower_deployment

    serial = IdleFederation({"name": "serial"}, folder / "serial", SITES)
    serial_seconds = statistics.median(serial.turn() for _ in range(WARM))
    startup, seconds = flower_deployment.rounds(folder, TASK, SITES, SITE_ROUNDS)
    return {
        f"round_milliseconds_flower_{SITES}_sites": round(1000 * statistics.median(seconds), 2),
        f"startup_seconds_flower_{SITES}_sites": round(startup, 2),
        f"ratio_flower_{SITES}_sites": round(statistics.median(seconds) / serial_seconds, 1),
    }


class IdleFederation:
    """A federation of idle clients on one engine."""

    def __init__(self, engine: dict[str, Any], folder: Path, clients: int = CLIENTS) -> None:
        federation = simulation.build_federation(parse({**TASK, "clients": clients, "engine": engine}))
        roster = federation.profiles()
        started = time.perf_counter()
        self._engine = make_engine(federation, folder / "states", folder / "federation")
        server = initialise(federation.method, federation.server(roster))
        self._loop = RoundLoop(federation.method, server, Door(federation.method, self._engine, roster))
        self._number = 0
        self.turn()
        self.startup = time.perf_counter() - started  # until the end of the first round

    def turn(self) -> float:
        """Run a round and return its seconds."""
        self._number += 1
        return self._loop.run_round(self._number).seconds

    def close(self) -> None:
        self._engine.close()
