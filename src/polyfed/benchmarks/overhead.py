"""What the federation costs on top of training: a round on the pool against bare loops, in the same run.

The ideal is the same models on the same batches: forward, backward, step and nothing else, with the batches already
made and the fastest settings there are (fused optimiser, channels-last), in as many single-threaded processes, and
perfectly balanced between them: the mean of the processes' times, not the slowest.
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from polyfed import catalogue, federation
from polyfed.benchmarks.synthetic import images
from polyfed.config import Config, parse
from polyfed.core.cohort import Cohort
from polyfed.core.door import Door
from polyfed.core.server import Server
from polyfed.experiment import make_engine, one_torch_thread
from polyfed.training.fit import TrainSettings, make_optimizer

CLIENTS, SAMPLES, SIZE, REPEATS = 20, 6000, 28, 7


def measure() -> dict[str, Any]:
    """Figures: the pool's round divided by the ideal, and the speed-up from one worker to two against the ideal's."""
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder, one_torch_thread():
        made = _federation(Path(folder))
        times = {workers: _compare(made, workers, Path(folder) / str(workers)) for workers in (1, 2)}
    for workers, (pool, ideal) in times.items():
        figures[f"round_seconds_{workers}_workers"] = statistics.median(pool)
        figures[f"ideal_seconds_{workers}_workers"] = statistics.median(ideal)
        figures[f"overhead_{workers}_workers"] = statistics.median(p / i for p, i in zip(pool, ideal, strict=True))
    figures["speedup_pool"] = figures["round_seconds_1_workers"] / figures["round_seconds_2_workers"]
    figures["speedup_ideal"] = figures["ideal_seconds_1_workers"] / figures["ideal_seconds_2_workers"]
    figures["speedup_ratio"] = figures["speedup_pool"] / figures["speedup_ideal"]
    settings = {
        "clients": CLIENTS,
        "samples": SAMPLES,
        "image": SIZE,
        "batch": 10,
        "group": "tiny4",
        "repeats": REPEATS,
    }
    return {"figures": {name: round(value, 4) for name, value in figures.items()}, "settings": settings}


def _federation(folder: Path) -> federation.Federation:
    config: Config = parse(
        {
            "method": "local",
            "clients": CLIENTS,
            "data": {"partition": {"scheme": "iid"}},
            "models": {"group": "tiny4"},
        }
    )
    data = images("overhead", SAMPLES, SIZE, folder / "cache")
    return federation.from_parts(config, catalogue.make(config.method), federation.assign_models(config), data)


def _compare(made: federation.Federation, workers: int, folder: Path) -> tuple[list[float], list[float]]:
    """Rounds on the pool and of the bare processes, in turns, so that both see the same machine."""
    config = parse({**made.config.to_dict(), "engine": {"name": "pool", "workers": workers}})
    made = federation.Federation(config, made.dataset, made.partition, None, made.specs, made.method)
    engine = make_engine(made, folder / "states", folder / "federation")
    bare = [_Bare(made, [name for name in made.names if int(name) % workers == w]) for w in range(workers)]
    roster = made.profiles()
    door = Door(made.method, engine, roster)
    server = Server(roster, made.dataset.classes, 1, 0, made.common_model)
    cohort = Cohort(door, made.names, lambda names: None)
    pool_times, ideal_times = [], []
    try:
        for number in range(REPEATS + 1):
            door.begin_round(number + 1)
            started = time.perf_counter()
            made.method.round(server, cohort)
            pool_times.append(time.perf_counter() - started)
            for process in bare:
                process.start()
            ideal_times.append(statistics.mean(process.seconds() for process in bare))
    finally:
        engine.close()
        for process in bare:
            process.close()
    return pool_times[1:], ideal_times[1:]  # the first is warm-up


class _Bare:
    """A process that trains some clients' models in the barest way."""

    def __init__(self, made: federation.Federation, names: list[str]) -> None:
        context = multiprocessing.get_context("fork")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_bare_life, args=(theirs, made, names), daemon=True)
        self._process.start()

    def start(self) -> None:
        self._connection.send_bytes(b"go")

    def seconds(self) -> float:
        return float(self._connection.recv_bytes())

    def close(self) -> None:
        self._connection.close()
        self._process.terminate()
        self._process.join()


def _bare_life(connection: Connection, made: federation.Federation, names: list[str]) -> None:
    torch.set_num_threads(1)
    settings = TrainSettings()
    clients = [made.make(name) for name in names]
    prepared = []
    for client in clients:
        batches = list(
            client.train.batches(
                settings.batch_size, shuffle=client.stream("fit"), drop_single=client.model.has_batchnorm
            )
        )
        client.model.train()
        prepared.append((client.model, batches, make_optimizer(client.model.parameters(), settings)))
    while connection.recv_bytes():
        started = time.perf_counter()
        for model, batches, optimizer in prepared:
            for x, y in batches:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        connection.send_bytes(repr(time.perf_counter() - started).encode())
