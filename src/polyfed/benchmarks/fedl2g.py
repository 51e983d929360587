"""Client time of a FedL2G round, compared with FedDistill and FedProto. The methods take turns.

All methods train the same models on the same data partition. FedL2G holds out its quiz set, so it trains on slightly
less data; then it computes a pseudo-step, the loss on a quiz batch and a Jacobian-vector product. The other methods
make one more pass over their data for class means. Compared are the rounds after the warm-up, in which all train.
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
    "learning_over_frozen": ("fedl2g_logit", "fedl2g_frozen"),  # the cost of learning the guidance alone
}


def measure() -> dict[str, Any]:
    """Return the client seconds of a round, and the median over rounds of their ratios."""
    seconds: dict[str, list[float]] = {name: [] for name in METHODS}
    with tempfile.TemporaryDirectory() as folder, one_torch_thread():
        data = images("fedl2g", SAMPLES, SIZE, Path(folder) / "cache")
        runs = {name: _MethodRun.create(fields, data, Path(folder) / name) for name, fields in METHODS.items()}
        for number in range(1, REPEATS + 2):
            for name, run in runs.items():
                seconds[name].append(run.client_seconds(number))
    seconds = {name: values[1:] for name, values in seconds.items()}  # the first round has no targets
    figures = {f"client_seconds_{name}": statistics.median(values) for name, values in seconds.items()}
    for name, (method, baseline) in PAIRS.items():
        figures[name] = statistics.median(a / b for a, b in zip(seconds[method], seconds[baseline], strict=True))
    settings = {"clients": CLIENTS, "samples": SAMPLES, "image": SIZE, "batch": 10, "group": "tiny4"}
    return {
        "figures": {name: round(value, 4) for name, value in figures.items()},
        "settings": {**settings, "repeats": REPEATS},
    }


@dataclass(frozen=True)
class _MethodRun:
    """One method with its own clients, in this process."""

    loop: RoundLoop

    @staticmethod
    def create(method: dict[str, Any], data: Dataset, states: Path) -> _MethodRun:
        config = parse({"method": method, "clients": CLIENTS, "data": {"partition": {"scheme": "iid"}}})
        federation = simulation.build_federation(config, data=data)
        roster = federation.profiles()
        server = initialise(federation.method, federation.server(roster))
        door = Door(federation.method, SerialEngine(simulation.make_host(federation, states)), roster)
        return _MethodRun(RoundLoop(federation.method, server, door))

    def client_seconds(self, number: int) -> float:
        return self.loop.run_round(number).stats.client_seconds
