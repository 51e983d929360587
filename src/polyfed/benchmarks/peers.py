"""Seconds of a round in polyfed and in other libraries: the same CNNs, samples and batches, in turns.

| task | libraries |
|---|---|
| `fedavg`: one CNN, no evaluation in the round | polyfed, Flower's simulation, Apple's pfl |
| `idle`: clients that do nothing | polyfed, Flower's simulation |
| `lg-fedavg` and `fedproto`: four CNNs, evaluation in every round | polyfed, HtFLlib (if a checkout is given) |

Ratios are computed within a turn. A library that waits for its turn is paused, because Flower's simulation polls for
messages between rounds. A comparison counts if the accuracies after the last round are close.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from polyfed.benchmarks.engines import IdleFederation
from polyfed.benchmarks.peer_environments import PeerProcess
from polyfed.benchmarks.peer_models import NAMES
from polyfed.benchmarks.peer_scripts import setting
from polyfed.config import parse
from polyfed.core.door import Door
from polyfed.core.rounds import RoundLoop, initialise, one_torch_thread
from polyfed.federation import simulation
from polyfed.federation.engine_factory import make_engine
from polyfed.machine import available_cores
from polyfed.training import Samples

CLIENTS, SAMPLES, TEST_SAMPLES, ROUNDS, IDLE_ROUNDS = 20, 6000, 1000, 8, 40
CLOSE = 0.03  # largest difference of accuracies
TASKS = ("fedavg", "idle", "lg-fedavg", "fedproto")


class Contestant(Protocol):
    """One library with one task."""

    def turn(self) -> float: ...

    def accuracy(self) -> float | None: ...

    def close(self) -> None: ...


def measure(
    data: Path | None = None,
    htfllib: Path | None = None,
    task: str | None = None,
    rounds: int = ROUNDS,
    clients: int = CLIENTS,
) -> dict[str, Any]:
    """Return seconds per round, their spread, ratios to polyfed, and accuracies, of one task or of all.

    `data` is a folder with Fashion-MNIST (None: the Hugging Face hub), `htfllib` a checkout of HtFLlib.
    """
    cores = available_cores()
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as text, one_torch_thread():
        folder = Path(text)
        settings = _settings(data, clients, rounds)
        write_samples(simulation.build_federation(parse(settings)), folder)
        idle_rounds = min(IDLE_ROUNDS, 5 * rounds)
        tasks: dict[str, tuple[int, dict[str, Callable[[], Contestant]]]] = {
            "fedavg": (
                rounds,
                {
                    "polyfed": lambda: Polyfed({**settings, "method": "fedavg"}, folder / "fedavg", cores),
                    "flower": lambda: Peer("flower", "flower_peer", text, str(cores), "fedavg"),
                    "pfl": lambda: Peer("pfl", "pfl_peer", text, str(cores), threads=cores),
                },
            ),
            "idle": (
                idle_rounds,
                {
                    "polyfed": lambda: IdlePolyfed(clients, folder / "idle", cores),
                    "flower": lambda: Peer("flower", "flower_peer", text, str(cores), "idle", idle=True),
                },
            ),
        }
        for method in ("lg-fedavg", "fedproto") if htfllib is not None else ():
            tasks[method] = (rounds, _against_htfllib(method, settings, folder, cores, str(htfllib)))
        for name, (count, makers) in tasks.items():
            if task in (None, name):
                figures |= _compare(name, count, makers)
    facts = {"clients": clients, "samples": SAMPLES, "batch": setting.BATCH, "rounds": rounds, "cores": cores}
    result = {"figures": figures, "settings": {**facts, "close": CLOSE, "htfllib": htfllib is not None}}
    return result if task is None else {"name": f"peers --task {task}", **result}


def _against_htfllib(
    method: str, settings: dict[str, Any], folder: Path, cores: int, checkout: str
) -> dict[str, Callable[[], Contestant]]:
    # HtFLlib sets the same random seed before it creates the model of a client
    models = {"group": NAMES, "shared_init": True}
    four = {**settings, "method": method, "models": models, "evaluate": {"global": False}}
    if method == "fedproto":
        # HtFLlib takes its class means from the features of the last epoch, too
        four["method"] = {"name": "fedproto", "guidance": 1.0, "collect": "online"}
    return {
        "polyfed": lambda: Polyfed(four, folder / method, cores, measure="personal"),
        "htfllib": lambda: Peer(
            "htfllib", "htfllib_peer", str(folder), checkout, method, threads=None, evaluates=True
        ),
    }


def _settings(data: Path | None, clients: int, rounds: int) -> dict[str, Any]:
    """Return the config of polyfed's runs."""
    return {
        "method": "local",
        "imports": ["polyfed.benchmarks.peer_models"],
        "clients": clients,
        "rounds": rounds,
        "data": {
            "dataset": "fashion_mnist",
            "root": None if data is None else str(data),
            "limit": SAMPLES,
            "test_limit": TEST_SAMPLES,
            "partition": {"scheme": "iid"},
        },
        "models": {"group": NAMES[:1]},
        "train": {"epochs": 1, "batch_size": setting.BATCH, "lr": setting.LEARNING_RATE},
        "evaluate": {"every": 10_000, "personal": False},
    }


def write_samples(federation: simulation.SimulatedFederation, folder: Path) -> None:
    """Write the samples of all clients, as polyfed's models receive them, and the common initial weights."""
    arrays: dict[str, np.ndarray[Any, Any]] = {}

    def add(name: str, suffix: str, samples: Samples) -> None:
        inputs, labels = next(iter(samples.batches(len(samples))))
        arrays[f"{name}_x{suffix}"] = inputs.contiguous().numpy()
        arrays[f"{name}_y{suffix}"] = labels.numpy()

    for number, client in enumerate(federation.make_client(name) for name in federation.names):
        add("train", str(number), client.train)
        add("test", str(number), client.test)
    if federation.global_test is not None:
        add("test", "", federation.global_test)
    for name, tensor in federation.common_model(federation.specs[0].text).state_dict().items():
        own_name = name.removeprefix("backbone.").replace("head.", "fc.")
        arrays[f"initial_{own_name}"] = tensor.contiguous().numpy()
    np.savez(folder / "samples.npz", **arrays)  # type: ignore[arg-type]


def _compare(task: str, rounds: int, makers: dict[str, Callable[[], Contestant]]) -> dict[str, Any]:
    """Run the rounds of a task in turns. The first round of each library warms up and does not count."""
    with contextlib.ExitStack() as stack:
        contestants: dict[str, Contestant] = {}
        for name, make in makers.items():
            contestants[name] = make()
            stack.callback(contestants[name].close)
        turns = [{name: one.turn() for name, one in contestants.items()} for _ in range(rounds)][1:]
        accuracies = {name: one.accuracy() for name, one in contestants.items()}
    figures: dict[str, Any] = {}
    for name in contestants:
        seconds = sorted(turn[name] for turn in turns)
        figures[f"{task}_{name}_seconds"] = round(statistics.median(seconds), 4)
        figures[f"{task}_{name}_spread"] = round(seconds[-1] - seconds[0], 4)
        accuracy, ours = accuracies[name], accuracies["polyfed"]
        if accuracy is not None:
            figures[f"{task}_{name}_accuracy"] = round(accuracy, 4)
        if name != "polyfed":
            ratio = statistics.median(turn[name] / turn["polyfed"] for turn in turns)
            figures[f"{task}_{name}_over_polyfed"] = round(ratio, 3)
            same = accuracy is None or ours is None or abs(accuracy - ours) <= CLOSE
            figures[f"{task}_{name}_counts"] = same
    return figures


class Polyfed:
    """A federation on the pool, with one worker per core."""

    def __init__(self, settings: dict[str, Any], folder: Path, workers: int, measure: str = "global") -> None:
        config = parse({**settings, "engine": {"name": "pool", "workers": workers}})
        federation = simulation.build_federation(config)
        roster = federation.profiles()
        self._engine = make_engine(federation, folder / "states", folder / "federation")
        server = initialise(federation.method, federation.server(roster))
        door = Door(federation.method, self._engine, roster)
        self._every_round = measure == "personal"
        self._measure, self._number, self._accuracy = measure, 0, 0.0
        self._loop = RoundLoop(federation.method, server, door, evaluate_every=1)
        if self._every_round:
            self._loop.measures = (measure,)

    def turn(self) -> float:
        """Run a round and return its seconds."""
        self._number += 1
        result = self._loop.run_round(self._number)
        if self._every_round:
            self._accuracy = _fraction(result.evaluation.counts[self._measure])
        return result.seconds

    def accuracy(self) -> float:
        """Return the accuracy after the last round."""
        if self._every_round:
            return self._accuracy
        loop = self._loop
        published = loop.method.publish(loop.server)
        counts = loop.door.evaluator.evaluate(loop.clients, (self._measure,), published).counts
        return _fraction(counts[self._measure])

    def close(self) -> None:
        self._engine.close()


def _fraction(counts: dict[str, tuple[int, int]]) -> float:
    """Return the accuracy over all samples of all clients."""
    correct, total = (sum(pair[i] for pair in counts.values()) for i in (0, 1))
    return correct / max(1, total)


class IdlePolyfed(IdleFederation):
    """Clients that do nothing, on the pool."""

    def __init__(self, clients: int, folder: Path, workers: int) -> None:
        super().__init__({"name": "pool", "workers": workers}, folder, clients)

    def accuracy(self) -> None:
        return None


class Peer:
    """Another library. It evaluates its models at the start of every round if it `evaluates`, else on request."""

    def __init__(
        self,
        library: str,
        script: str,
        *arguments: str,
        threads: int | None = 1,
        evaluates: bool = False,
        idle: bool = False,
    ) -> None:
        self._process = PeerProcess(library, script, *arguments, threads=threads)
        self._evaluates, self._idle = evaluates, idle
        self._accuracy: float | None = None

    def turn(self) -> float:
        """Run a round and return its seconds."""
        answer = self._process.ask()
        if not (self._idle or self._evaluates):
            self._accuracy = self._process.ask()["accuracy"]
        return answer["seconds"]

    def accuracy(self) -> float | None:
        """Return the accuracy after the last round."""
        # the evaluation at the start of one more round
        return self._process.ask()["accuracy"] if self._evaluates else self._accuracy

    def close(self) -> None:
        self._process.close()
