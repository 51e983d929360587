"""What learning the guidance costs a client: FedL2G's rounds against FedDistill's and FedProto's, in turns.

All train the same models on the same shares. FedL2G holds its quiz out, so trains on a little less, and then takes a
pseudo-step, a quiz and a Jacobian-vector product; the others make one clean pass over their data for class means.
The rounds compared are those after the warm-up, in which every method trains.
"""

from __future__ import annotations

import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyfed.benchmarks.synthetic import images
from polyfed.config import parse
from polyfed.core.door import Door
from polyfed.core.rounds import RoundLoop, initialise, one_torch_thread
from polyfed.data.dataset import Dataset
from polyfed.engines.serial import SerialEngine
from polyfed.federation import simulation

CLIENTS, SAMPLES, SIZE, REPEATS = 20, 6000, 28, 7
METHODS: dict[str, dict[str, Any]] = {
    "fedl2g_logit": {"name": "fedl2g", "space": "logit", "warmup": 0},
    "feddistill": {"name": "feddistill"},
    "fedl2g_feature": {"name": "fedl2g", "space": "feature", "warmup": 0},
    "fedproto": {"name": "fedproto"},
    "fedl2g_frozen": {"name": "fedl2g", "guidance": "frozen-random", "warmup": 0},
}
PAIRS = {
    "logit_over_feddistill": ("fedl2g_logit", "feddistill"),
    "feature_over_fedproto": ("fedl2g_feature", "fedproto"),
    "learning_over_frozen": ("fedl2g_logit", "fedl2g_frozen"),  # what the feedback alone adds
}


def measure() -> dict[str, Any]:
    """Figures: client seconds of a round, and the median over rounds of their ratios."""
    seconds: dict[str, list[float]] = {name: [] for name in METHODS}
    with tempfile.TemporaryDirectory() as folder, one_torch_thread():
        data = images("fedl2g", SAMPLES, SIZE, Path(folder) / "cache")
        sides = {name: _Side.of(fields, data, Path(folder) / name) for name, fields in METHODS.items()}
        for number in range(1, REPEATS + 2):
            for name, side in sides.items():
                seconds[name].append(side.client_seconds(number))
    seconds = {name: found[1:] for name, found in seconds.items()}  # in the first round nobody has targets yet
    figures = {f"client_seconds_{name}": statistics.median(found) for name, found in seconds.items()}
    for name, (ours, theirs) in PAIRS.items():
        figures[name] = statistics.median(a / b for a, b in zip(seconds[ours], seconds[theirs], strict=True))
    settings = {"clients": CLIENTS, "samples": SAMPLES, "image": SIZE, "batch": 10, "group": "tiny4"}
    return {
        "figures": {name: round(value, 4) for name, value in figures.items()},
        "settings": {**settings, "repeats": REPEATS},
    }


@dataclass(frozen=True)
class _Side:
    """One method with its own clients, all in this process."""

    loop: RoundLoop

    @staticmethod
    def of(method: dict[str, Any], data: Dataset, states: Path) -> _Side:
        config = parse({"method": method, "clients": CLIENTS, "data": {"partition": {"scheme": "iid"}}})
        made = simulation.build_federation(config, data=data)
        roster = made.profiles()
        server = initialise(made.method, made.server(roster))
        door = Door(made.method, SerialEngine(simulation.make_host(made, states)), roster)
        return _Side(RoundLoop(made.method, server, door))

    def client_seconds(self, number: int) -> float:
        return self.loop.run_round(number).stats.client_seconds
