"""Populations of 100 to 100,000 clients with 20 clients per round: time of a round, memory and disk.

Every population runs in a process of its own. They take turns of five rounds, and ratios are computed within a turn,
because the speed of a machine changes within a minute. A client that has participated keeps its state on disk, so
disk use grows with the number of such clients. It must not grow with further rounds of the same clients.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Self

from polyfed import api, machine
from polyfed.benchmarks.population import PER_ROUND, population_config
from polyfed.config import Config
from polyfed.machine import fast_imports
from polyfed.runs.records import RoundRecord

POPULATIONS = (100, 1_000, 10_000, 100_000)
SAMPLES_EACH, ROUNDS, ROUNDS_PER_TURN = 16, 60, 5


def measure() -> dict[str, Any]:
    """Return figures of every population, and the ratios of the larger ones to the smallest."""
    figures: dict[str, Any] = {}
    turns: list[dict[int, dict[str, float]]] = []  # medians of the rounds, by population
    with contextlib.ExitStack() as stack:
        runs = {clients: stack.enter_context(_PopulationProcess(clients, ROUNDS)) for clients in POPULATIONS}
        for _ in range(ROUNDS // ROUNDS_PER_TURN):
            turns.append({clients: run.next_figures() for clients, run in runs.items()})
        ends = {clients: run.next_figures() for clients, run in runs.items()}
    turns = turns[len(turns) // 2 :]  # by then every client of the smallest population has participated
    for clients, end in ends.items():
        medians = {name: statistics.median(turn[clients][name] for turn in turns) for name in turns[0][clients]}
        figures |= {f"{name}_{clients}": round(value, 4) for name, value in {**medians, **end}.items()}
    smallest, *others = POPULATIONS
    for clients in others:
        for name, label in (("round_seconds", "ratio"), ("round_cpu_seconds", "cpu_ratio")):
            ratio = statistics.median(turn[clients][name] / turn[smallest][name] for turn in turns)
            figures[f"{label}_{clients}"] = round(ratio, 3)
    settings = {"per_round": PER_ROUND, "samples_each": SAMPLES_EACH, "rounds": ROUNDS, "method": "fedproto"}
    return {"figures": figures, "settings": settings}


class _PopulationProcess:
    """A run of one population in a process of its own, whose peak memory is that of the run."""

    def __init__(self, clients: int, rounds: int) -> None:
        command = [sys.executable, "-m", "polyfed.benchmarks.scale", str(clients), str(rounds)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        self._read()  # it is ready for its first round

    def next_figures(self) -> dict[str, float]:
        """Let the process run for a turn, and return its figures; after the last turn, those of the run."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the run of a population ended with exit code {self._process.wait()}")
        figures: dict[str, float] = json.loads(line)
        return figures

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate()  # closes its input, so that it ends and deletes its files


class TurnObserver:
    """Reports the figures of every turn to the benchmark, and waits for the next one."""

    def __init__(self) -> None:
        self.ready_at = 0.0
        self.sizes: list[int] = []  # of stored states, in bytes
        self.states = 0  # number of stored states
        self._folder = Path()
        self._cpu = 0.0  # when the round began
        self._seconds: list[float] = []  # of the rounds of this turn
        self._cpu_seconds: list[float] = []

    def started(self, config: Config, folder: Path, done: int) -> None:
        self._folder, self.ready_at = folder, time.perf_counter()
        self._take_turn({})

    def round_done(self, record: RoundRecord) -> None:
        self._seconds.append(record.seconds["total"])
        self._cpu_seconds.append(time.process_time() - self._cpu)
        files = [path.stat().st_size for path in (self._folder / "checkpoint").rglob("*") if path.is_file()]
        self.sizes.append(sum(files))
        self.states = len(files)
        if len(self._seconds) == ROUNDS_PER_TURN:
            seconds, cpu_seconds = statistics.median(self._seconds), statistics.median(self._cpu_seconds)
            self._take_turn({"round_seconds": seconds, "round_cpu_seconds": cpu_seconds})
        self._cpu = time.process_time()

    def note(self, sentence: str) -> None: ...

    def _take_turn(self, figures: dict[str, float]) -> None:
        report(figures)
        if not sys.stdin.readline():
            raise EOFError("the benchmark has ended")
        self._seconds, self._cpu_seconds, self._cpu = [], [], time.process_time()


def report(figures: dict[str, float]) -> None:
    """Send figures to the benchmark."""
    sys.stdout.write(json.dumps(figures) + "\n")
    sys.stdout.flush()


def population(clients: int, rounds: int, folder: Path) -> dict[str, float]:
    """Run one population in this process, in turns with others, and return the figures of the whole run."""
    with fast_imports(permanent=True):  # as commands do
        from polyfed.benchmarks.synthetic import images
    # one process, so that its CPU time and its memory are those of the run
    config = population_config(clients, rounds, {"name": "serial"})
    data = images(f"scale{clients}", clients * SAMPLES_EACH, 8, folder / "cache")
    observer = TurnObserver()
    began = time.perf_counter()
    api.run_config(config, out=folder / "run", data=data, observers=[observer])
    return {
        "startup_seconds": round(observer.ready_at - began, 2),
        "peak_gb": round(machine.peak_rss() / 1e9, 3),
        "disk_mb_half": round(observer.sizes[rounds // 2 - 1] / 1e6, 3),
        "disk_mb_end": round(observer.sizes[-1] / 1e6, 3),
        "files_end": observer.states,
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        report(population(int(sys.argv[1]), int(sys.argv[2]), Path(scratch)))
