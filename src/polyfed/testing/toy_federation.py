"""A tiny federation in memory, made for a method and run in many ways.

Four classes of 1x8x8 pictures that can be learned in a few steps, five clients, two rounds: one run takes a fraction
of a second. Files go to a temporary folder that ends with the toy.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from polyfed import api
from polyfed.config import Config, parse
from polyfed.core.door import RoundStats
from polyfed.core.method import Method
from polyfed.data import dataset as datasets
from polyfed.data import partition_file
from polyfed.federation import simulation as federations
from polyfed.federation.simulation import SimulatedFederation
from polyfed.runs.state_store import FolderStore
from polyfed.testing.engine_wrappers import RecordedMessage, RecordingEngine
from polyfed.testing.rounds import Outcome, Stage, Wrap, run_rounds

CLASSES = 4
PER_CLASS = 40
BATCH = 8
# Training samples of each client by class: uneven on purpose, all classes somewhere, no class everywhere.
CLASS_COUNTS: tuple[tuple[int, ...], ...] = ((6, 4, 0, 0), (0, 5, 7, 0), (0, 0, 6, 6), (5, 0, 0, 4), (3, 3, 3, 3))


def pictures(per_class: int, stream: np.random.Generator) -> tuple[Any, Any]:
    """Noisy copies of one random pattern per class."""
    patterns = np.random.Generator(np.random.PCG64(11)).random((CLASSES, 8, 8))
    labels = np.repeat(np.arange(CLASSES), per_class)
    noise = stream.normal(0, 0.15, (len(labels), 8, 8))
    return np.clip(patterns[labels] + noise, 0, 1), labels


@cache
def _data() -> tuple[datasets.Dataset, tempfile.TemporaryDirectory[str]]:
    """The pictures, made once in a process, and the folder that holds them until it ends."""
    folder = tempfile.TemporaryDirectory(prefix="polyfed-toy-data-")
    stream = np.random.Generator(np.random.PCG64(5))
    train, test = pictures(PER_CLASS, stream), pictures(5, stream)
    names = [f"class {c}" for c in range(CLASSES)]
    return datasets.from_arrays("toy", *train, *test, class_names=names, cache=Path(folder.name)), folder


@dataclass(frozen=True)
class Reference:
    """The plain run of a method, with which other runs are compared, and every message of it."""

    hash: str
    round_stats: tuple[RoundStats, ...]
    up: tuple[RecordedMessage, ...]
    down: tuple[RecordedMessage, ...]


@lru_cache(maxsize=2)
def _reference(method: type[Method], fields: str) -> Reference:
    """Made once for all checks of a method that are run one after the other."""
    with ToyFederation(method, json.loads(fields)) as toy:
        recorder = RecordingEngine()
        outcome = toy.run(wrap=recorder).checked()
    return Reference(outcome.hash, tuple(outcome.round_stats), tuple(recorder.up), tuple(recorder.down))


class ToyFederation:
    """Makes federations for a method and runs them. Use it as a context manager."""

    def __init__(self, method: type[Method], fields: Mapping[str, Any]) -> None:
        self.method = method
        self.fields = dict(fields)
        # a model with BatchNorm, which is the harder case, where all must have the same
        self.models: list[Any] | str = ["tiny-resnet"] if method.needs.same_architecture else "tiny4"
        if method.needs.sub_models:
            self.models = list(method.battery_models) or ["tiny-resnet@0.5", "tiny-resnet"]
        self._temporary = tempfile.TemporaryDirectory(prefix="polyfed-toy-")
        self.folder = Path(self._temporary.name)
        self._runs = 0
        self.data = _data()[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._temporary.cleanup()

    # making

    def settings(self, shares: Sequence[Sequence[int]] = CLASS_COUNTS, **changed: Any) -> dict[str, Any]:
        """A config in which client k trains on `shares[k][c]` samples of class c and is tested on two of each."""
        path = self.folder / f"partition-{len(list(self.folder.glob('partition-*')))}.npz"
        partition_file.save(make_partition(shares), path)
        settings: dict[str, Any] = {
            "method": {"name": self.method.name, **self.fields},
            "data": {"dataset": "toy", "partition": {"scheme": "file", "path": str(path)}},
            "models": {"group": self.models},
            "clients": len(shares),
            "rounds": 2,
            "train": {"batch_size": BATCH, "lr": 0.05},
            "engine": {"name": "serial"},
        }
        return settings | changed

    def config(self, shares: Sequence[Sequence[int]] = CLASS_COUNTS, **changed: Any) -> Config:
        return parse(self.settings(shares, **changed))

    def federation(self, config: Config, method: Method | None = None) -> SimulatedFederation:
        made = method or self.method(**self.fields)
        return federations.build_federation(config, data=self.data, method=made)

    # running

    def run(
        self,
        config: Config | None = None,
        *,
        method: Method | None = None,
        wrap: Wrap | None = None,
        evaluate: bool = False,
        memory: int = 1 << 30,
        selected: Callable[[int], tuple[str, ...]] | None = None,
    ) -> Outcome:
        """All rounds on the serial engine, or on what `wrap` puts around it."""
        chosen = config or self.config()
        federation = self.federation(chosen, method)
        roster = federation.profiles()
        federation.check_needs(roster)
        return run_rounds(
            Stage(
                federation,
                roster,
                federation.common_model,
                federation.family if federation.method.one_model else None,
            ),
            chosen.rounds,
            wrap=wrap,
            evaluate=evaluate,
            memory=memory,
            selected=selected,
            store=FolderStore(self.new_folder()),
        )

    def reference(self) -> Reference:
        """What the plain run of the method ends with and sends; no client fails in it."""
        return _reference(self.method, json.dumps(self.fields, sort_keys=True))  # type: ignore[arg-type]  # a class

    def experiment(self, settings: Mapping[str, Any], folder: Path | None = None, **options: Any) -> dict[str, Any]:
        """The same through the front door: a run folder, checkpoints, and the engine that the settings name."""
        method = self.method(**self.fields)
        return api.run(dict(settings), data=self.data, method=method, out=folder or self.new_folder(), **options)

    def new_folder(self) -> Path:
        self._runs += 1
        return self.folder / f"run-{self._runs}"


def make_partition(shares: Sequence[Sequence[int]]) -> partition_file.Partition:
    """Sample numbers by client: from the front of every class for training, from its end for testing."""
    taken = [0] * CLASSES
    train = []
    for share in shares:
        mine: list[int] = []
        for label, count in enumerate(share):
            start = label * PER_CLASS + taken[label]
            mine += range(start, start + count)
            taken[label] += count
        train.append(np.array(sorted(mine), dtype=np.int64))
    ends = np.array([(label + 1) * PER_CLASS - n for label in range(CLASSES) for n in (2, 1)], dtype=np.int64)
    if max(taken) > PER_CLASS - 2:
        raise ValueError(f"a class has {PER_CLASS - 2} samples to share out, {max(taken)} were asked for")
    return partition_file.Partition(tuple(train), tuple(ends for _ in shares))
