"""Seconds per round of 20 clients that do nothing, on every engine, and Flower's own simulation beside them.

Rounds are interleaved and ratios formed within a turn: what else the machine does falls on all of them. Flower's
simulation, whose processes are busy between rounds too, takes its turns with the serial engine alone. A real
federation over Flower takes seconds per round and a process per site: it has few sites, against as many clients.
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
    """Figures: milliseconds of a round, their ratios to serial, start-up seconds, and whether our limits hold."""
    flower, ray = (importlib.util.find_spec(name) is not None for name in ("flwr", "ray"))
    figures = _compared([*OURS, *(["ray"] if ray else [])])
    if flower and ray:
        beside = _compared(["serial", SIMULATION])
        figures |= {name: value for name, value in beside.items() if name.endswith(SIMULATION)}
    if flower:
        with tempfile.TemporaryDirectory() as folder, one_torch_thread():
            figures |= _deployment(Path(folder))
    settings = {"clients": CLIENTS, "workers": WORKERS, "rounds": ROUNDS, "sites": SITES, "site_rounds": SITE_ROUNDS}
    left_out = [name for name, there in (("flwr", flower), ("ray", ray)) if not there]
    return {"figures": figures, "settings": {**settings, "limits": LIMITS, "not_installed": left_out}}


def _compared(names: list[str]) -> dict[str, Any]:
    """These engines in turns, the first of them serial."""
    with tempfile.TemporaryDirectory() as folder, one_torch_thread(), contextlib.ExitStack() as ends:
        sides: dict[str, Side | Simulation] = {}
        for name in names:
            engine = {"name": name} if name == "serial" else {"name": name, "workers": WORKERS}
            simulated = name == SIMULATION
            sides[name] = Simulation(CLIENTS, WORKERS) if simulated else Side(engine, Path(folder) / name)
            ends.callback(sides[name].close)
        turns = [{name: side.turn() for name, side in sides.items()} for _ in range(WARM + ROUNDS)][WARM:]
    figures: dict[str, Any] = {}
    for name, side in sides.items():
        figures[f"round_milliseconds_{name}"] = round(1000 * statistics.median(turn[name] for turn in turns), 2)
        figures[f"startup_seconds_{name}"] = round(side.startup, 2)
        ratio = statistics.median(turn[name] / turn["serial"] for turn in turns)
        if name != "serial":
            figures[f"ratio_{name}"] = round(ratio, 3)
        if name in LIMITS:
            figures[f"holds_{name}"] = ratio <= LIMITS[name]
    return figures


def _deployment(folder: Path) -> dict[str, Any]:
    """A federation of few sites, beside the serial engine with as many clients."""
    from polyfed.benchmarks import flower_deployment

    serial = Side({"name": "serial"}, folder / "serial", SITES)
    beside = statistics.median(serial.turn() for _ in range(WARM))
    startup, seconds = flower_deployment.rounds(folder, TASK, SITES, SITE_ROUNDS)
    return {
        f"round_milliseconds_flower_{SITES}_sites": round(1000 * statistics.median(seconds), 2),
        f"startup_seconds_flower_{SITES}_sites": round(startup, 2),
        f"ratio_flower_{SITES}_sites": round(statistics.median(seconds) / beside, 1),
    }


class Side:
    """A federation whose clients do nothing, on one engine."""

    def __init__(self, engine: dict[str, Any], folder: Path, clients: int = CLIENTS) -> None:
        made = simulation.build_federation(parse({**TASK, "clients": clients, "engine": engine}))
        roster = made.profiles()
        started = time.perf_counter()
        self._engine = make_engine(made, folder / "states", folder / "federation")
        server = initialise(made.method, made.server(roster))
        self._loop = RoundLoop(made.method, server, Door(made.method, self._engine, roster))
        self._number = 0
        self.turn()
        self.startup = time.perf_counter() - started  # until the first round is done

    def turn(self) -> float:
        """Seconds of a round."""
        self._number += 1
        return self._loop.run_round(self._number).seconds

    def close(self) -> None:
        self._engine.close()
