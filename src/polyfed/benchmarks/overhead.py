"""Overhead of a federation: the time of a round on the pool, compared with plain training loops.

The ideal trains the same models on the same batches: forward, backward and step, with batches prepared in advance and
the fastest settings (fused optimiser, channels-last), in as many single-threaded processes. It is perfectly balanced:
its time is the mean over the processes, not the slowest. Both evaluate every model on its client's test samples.

Two groups of models are measured: the small networks of `tiny4`, and the CNNs of the benchmark `peers`, which have
0.6 to 2.6 million parameters.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F

from polyfed.benchmarks.commands import run_command
from polyfed.benchmarks.peer_models import NAMES
from polyfed.benchmarks.synthetic import images
from polyfed.config import parse
from polyfed.core.door import Door
from polyfed.core.rounds import RoundLoop, initialise, one_torch_thread
from polyfed.federation import simulation
from polyfed.federation.engine_factory import make_engine
from polyfed.machine import with_large_pages
from polyfed.training.fit import TrainSettings, make_optimizer
from polyfed.training.samples import EVALUATION_BATCH

CLIENTS, SAMPLES, SIZE, REPEATS = 20, 6000, 28, 11
WORKERS = (1, 2)
GROUPS: dict[str, dict[str, Any]] = {
    "tiny4": {"models": {"group": "tiny4"}},
    "cnns": {"models": {"group": NAMES}, "imports": ["polyfed.benchmarks.peer_models"]},
}


def measure() -> dict[str, Any]:
    """Return the time of a pool round over the ideal, and the speed-up from one worker to two over the ideal's.

    Pool and plain processes, with one and two workers, take turns, and ratios are computed within a turn, so that
    other load on the machine affects all of them. All run below a new process, so that the memory of plain processes
    has large pages as well.
    """
    command = [sys.executable, "-m", "polyfed.benchmarks.overhead"]
    figures = json.loads(run_command(command, with_large_pages(os.environ)).splitlines()[-1])
    facts = {"clients": CLIENTS, "samples": SAMPLES, "image": SIZE, "batch": 10, "repeats": REPEATS}
    return {"figures": figures, "settings": {**facts, "group": ", ".join(GROUPS)}}


def _measure_groups() -> dict[str, float]:
    figures: dict[str, float] = {}
    for group, settings in GROUPS.items():
        figures |= {f"{group}_{name}": round(value, 4) for name, value in _measure_group(settings).items()}
    return figures


def _measure_group(settings: dict[str, Any]) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder, one_torch_thread(), contextlib.ExitStack() as stack:
        federation = _federation(Path(folder), settings)
        contests = {n: stack.enter_context(_Contest(federation, n, Path(folder) / str(n))) for n in WORKERS}
        turns = [{n: contest.turn(number) for n, contest in contests.items()} for number in range(1, REPEATS + 2)][1:]
    figures: dict[str, float] = {}
    for n in WORKERS:
        figures[f"round_seconds_{n}_workers"] = statistics.median(turn[n][0] for turn in turns)
        figures[f"ideal_seconds_{n}_workers"] = statistics.median(turn[n][1] for turn in turns)
        figures[f"overhead_{n}_workers"] = statistics.median(turn[n][0] / turn[n][1] for turn in turns)
    figures["speedup_pool"] = statistics.median(turn[1][0] / turn[2][0] for turn in turns)
    figures["speedup_ideal"] = statistics.median(turn[1][1] / turn[2][1] for turn in turns)
    figures["speedup_ratio"] = statistics.median(
        (turn[1][0] / turn[2][0]) / (turn[1][1] / turn[2][1]) for turn in turns
    )
    return figures


def _federation(folder: Path, settings: dict[str, Any]) -> simulation.SimulatedFederation:
    data = images("overhead", SAMPLES, SIZE, folder / "cache")
    config = {"method": "local", "clients": CLIENTS, "data": {"partition": {"scheme": "iid"}}, **settings}
    return simulation.build_federation(parse(config), data=data)


class _Contest:
    """A pool, and as many plain training processes as it has workers."""

    def __init__(self, federation: simulation.SimulatedFederation, workers: int, folder: Path) -> None:
        config = parse({**federation.config.to_dict(), "engine": {"name": "pool", "workers": workers}})
        federation = dataclasses.replace(federation, config=config)
        names = [[name for name in federation.names if int(name) % workers == w] for w in range(workers)]
        self._plain = [_PlainProcess(federation, own) for own in names]
        self._engine = make_engine(federation, folder / "states", folder / "federation")
        roster = federation.profiles()
        server = initialise(federation.method, federation.server(roster))
        self._loop = RoundLoop(federation.method, server, Door(federation.method, self._engine, roster))
        self._loop.measures = ("personal",)

    def turn(self, number: int) -> tuple[float, float]:
        """Return the seconds of a round on the pool, and of the same training in plain processes."""
        pool = self._loop.run_round(number).seconds
        for process in self._plain:
            process.start()
        return pool, statistics.mean(process.seconds() for process in self._plain)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._engine.close()
        for process in self._plain:
            process.close()


class _PlainProcess:
    """A process that trains some clients' models in a plain loop."""

    def __init__(self, federation: simulation.SimulatedFederation, names: list[str]) -> None:
        context = multiprocessing.get_context("fork")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_train_plainly, args=(theirs, federation, names), daemon=True)
        self._process.start()

    def start(self) -> None:
        self._connection.send_bytes(b"go")

    def seconds(self) -> float:
        return float(self._connection.recv_bytes())

    def close(self) -> None:
        self._connection.close()
        self._process.terminate()
        self._process.join()


def _train_plainly(connection: Connection, federation: simulation.SimulatedFederation, names: list[str]) -> None:
    torch.set_num_threads(1)
    settings = TrainSettings()
    clients = [federation.make_client(name) for name in names]
    prepared = []
    for client in clients:
        batches = list(
            client.train.batches(
                settings.batch_size, shuffle=client.stream("fit"), drop_single=client.model.has_batchnorm
            )
        )
        test = list(client.test.batches(EVALUATION_BATCH))
        prepared.append((client.model, batches, test, make_optimizer(client.model.parameters(), settings)))
    while connection.recv_bytes():
        started = time.perf_counter()
        for model, batches, test, optimizer in prepared:
            model.train()
            for x, y in batches:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            model.eval()
            with torch.inference_mode():
                sum(int((model(x).argmax(1) == y).sum()) for x, y in test)
        connection.send_bytes(repr(time.perf_counter() - started).encode())


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_measure_groups()) + "\n")
