"""Populations of 100 to 100,000 clients with 20 clients per round: time of a round, memory and disk.

Every population runs in a process of its own. A client that has participated keeps its state on disk, so disk use
grows with the number of such clients. It must not grow with further rounds of the same clients.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from polyfed import api
from polyfed.benchmarks.commands import run_command
from polyfed.benchmarks.population import PER_ROUND, population_config
from polyfed.config import Config
from polyfed.machine import fast_imports
from polyfed.runs.records import RoundRecord

POPULATIONS = (100, 1_000, 10_000, 100_000)
SAMPLES_EACH, ROUNDS = 16, 30


def measure() -> dict[str, Any]:
    """Return figures of every population, and the ratio of the largest to the smallest."""
    figures: dict[str, Any] = {}
    runs = {clients: _in_new_process(clients, ROUNDS) for clients in POPULATIONS}
    for clients, run in runs.items():
        figures |= {f"{name}_{clients}": value for name, value in run.items()}
    small, large = runs[POPULATIONS[0]], runs[POPULATIONS[-1]]
    figures["round_ratio"] = round(large["round_seconds"] / small["round_seconds"], 3)
    figures["round_cpu_ratio"] = round(large["round_cpu_seconds"] / small["round_cpu_seconds"], 3)
    settings = {"per_round": PER_ROUND, "samples_each": SAMPLES_EACH, "rounds": ROUNDS, "method": "fedproto"}
    return {"figures": figures, "settings": settings}


def _in_new_process(clients: int, rounds: int) -> dict[str, float]:
    """Run a population in a new process, whose peak memory is its own."""
    command = [sys.executable, "-m", "polyfed.benchmarks.scale", str(clients), str(rounds)]
    figures: dict[str, float] = json.loads(run_command(command).splitlines()[-1])
    return figures


class DiskObserver:
    """Records the CPU time and the size of stored states after every round."""

    def __init__(self) -> None:
        self.cpu: list[float] = []
        self.sizes: list[int] = []
        self.states: list[int] = []  # number of states
        self._folder = Path()

    def started(self, config: Config, folder: Path, done: int) -> None:
        self._folder = folder

    def round_done(self, record: RoundRecord) -> None:
        self.cpu.append(time.process_time())
        files = [path.stat().st_size for path in (self._folder / "checkpoint").rglob("*") if path.is_file()]
        self.sizes.append(sum(files))
        self.states.append(len(files))

    def note(self, sentence: str) -> None: ...


def population(clients: int, rounds: int, folder: Path) -> dict[str, float]:
    """Run one population in this process, and return its figures."""
    with fast_imports(permanent=True):  # as commands do
        from polyfed.benchmarks.synthetic import images
    # one process, so that its CPU time and its memory are those of the run
    config = population_config(clients, rounds, {"name": "serial"})
    data = images(f"scale{clients}", clients * SAMPLES_EACH, 8, folder / "cache")
    observer = DiskObserver()
    began = time.perf_counter()
    result = api.run_config(config, out=folder / "run", data=data, observers=[observer])
    seconds = result["seconds"]["by_round"]
    half = rounds // 2
    cpu = [after - before for before, after in zip(observer.cpu, observer.cpu[1:], strict=False)]
    return {
        "startup_seconds": round(time.perf_counter() - began - sum(seconds), 2),
        "round_seconds": round(statistics.median(seconds[half:]), 4),
        "round_cpu_seconds": round(statistics.median(cpu[half - 1 :]), 4),
        "peak_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9, 3),
        "disk_mb_half": round(observer.sizes[half - 1] / 1e6, 3),
        "disk_mb_end": round(observer.sizes[-1] / 1e6, 3),
        "files_end": observer.states[-1],
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        sys.stdout.write(json.dumps(population(int(sys.argv[1]), int(sys.argv[2]), Path(scratch))) + "\n")
