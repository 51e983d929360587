"""A toy federation for testing a method: four classes of 1x8x8 images, five clients, two rounds.

The classes can be learned in a few steps, and one run takes a fraction of a second. Files go to a temporary folder.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np

from polyfed import api
from polyfed.config import Config, parse
from polyfed.core.method import Method
from polyfed.core.round_stats import RoundStats
from polyfed.data import dataset as datasets
from polyfed.data import partition_file
from polyfed.federation import placement
from polyfed.federation import simulation as federations
from polyfed.federation.simulation import SimulatedFederation
from polyfed.runs.state_store import FolderStore
from polyfed.testing.engine_wrappers import RecordedMessage, RecordingEngine
from polyfed.testing.rounds import Outcome, WrapEngine, run_on_serial

SampleKind = Literal["pictures", "numbers", "tokens"]
# By kind of samples: the group of models, and the one for methods with one architecture. For pictures this is a model
# with BatchNorm, which is the harder case.
GROUPS: dict[SampleKind, tuple[str, str]] = {
    "pictures": ("tiny4", "tiny-resnet"),
    "numbers": ("tabular4", "tiny-table-mlp"),
    "tokens": ("text4", "tiny-text-bag"),
}
CLASSES = 4
PER_CLASS = 40
BATCH = 8
# Training samples of each client by class: uneven, every class at some clients, no class at all of them.
CLASS_COUNTS: tuple[tuple[int, ...], ...] = ((6, 4, 0, 0), (0, 5, 7, 0), (0, 0, 6, 6), (5, 0, 0, 4), (3, 3, 3, 3))


def toy_images(per_class: int, stream: np.random.Generator) -> tuple[Any, Any]:
    """Return images in [0, 1] and labels: noisy copies of one random pattern per class."""
    patterns = np.random.Generator(np.random.PCG64(11)).random((CLASSES, 8, 8))
    labels = np.repeat(np.arange(CLASSES), per_class)
    noise = stream.normal(0, 0.15, (len(labels), 8, 8))
    return np.clip(patterns[labels] + noise, 0, 1), labels


def _toy_samples(kind: SampleKind, per_class: int, stream: np.random.Generator) -> tuple[Any, Any]:
    """Return samples and labels: pictures as bytes, rows of a table, or sentences of tokens."""
    if kind == "pictures":
        images, labels = toy_images(per_class, stream)
        return np.rint(images * 255).astype(np.uint8), labels
    labels = np.repeat(np.arange(CLASSES), per_class)
    if kind == "numbers":
        return stream.normal(labels[:, None], 0.5, (len(labels), 6)).astype(np.float32), labels
    return stream.integers(1, 10, (len(labels), 12)) + 10 * labels[:, None], labels


@cache
def _data(kind: SampleKind) -> tuple[datasets.Dataset, tempfile.TemporaryDirectory[str]]:
    """Return the dataset, created once per process, and its temporary folder."""
    folder = tempfile.TemporaryDirectory(prefix="polyfed-toy-data-")
    stream = np.random.Generator(np.random.PCG64(5))
    (train, train_labels), (test, test_labels) = (_toy_samples(kind, n, stream) for n in (PER_CLASS, 5))
    names = [f"class {c}" for c in range(CLASSES)]
    made = datasets.from_arrays(
        "toy",
        train,
        train_labels,
        test,
        test_labels,
        class_names=names,
        cache=Path(folder.name),
        vocabulary=10 * CLASSES + 10 if kind == "tokens" else 0,
    )
    return made, folder


@dataclass(frozen=True)
class Reference:
    """A method's run without changes, which other runs are compared with, and its messages."""

    hash: str
    round_stats: tuple[RoundStats, ...]
    up: tuple[RecordedMessage, ...]
    down: tuple[RecordedMessage, ...]


@lru_cache(maxsize=2)
def _reference(method: type[Method], fields: str, samples: SampleKind, device: str) -> Reference:
    """Run a method once for all checks that follow each other."""
    with ToyFederation(method, json.loads(fields), samples, device) as toy:
        recorder = RecordingEngine()
        outcome = toy.run(wrap=recorder).checked()
    return Reference(outcome.hash, tuple(outcome.round_stats), tuple(recorder.up), tuple(recorder.down))


class ToyFederation:
    """Toy federations for one method, on one kind of device. Use it as a context manager."""

    def __init__(
        self,
        method: type[Method],
        fields: Mapping[str, Any],
        samples: SampleKind = "pictures",
        device: str = "cpu",
    ) -> None:
        self.method = method
        self.fields = dict(fields)
        self.samples = samples
        self.device = device
        self.hashes: list[str] = []  # state hashes of all runs
        group, single = GROUPS[samples]
        self.models: list[Any] | str = [single] if method.needs.same_architecture else group
        if method.needs.sub_models:
            self.models = list(method.battery_models) or ["tiny-resnet@0.5", "tiny-resnet"]
        self._temporary = tempfile.TemporaryDirectory(prefix="polyfed-toy-")
        self.folder = Path(self._temporary.name)
        self._runs = 0
        self.data = _data(samples)[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._temporary.cleanup()

    # configs and federations

    def settings(self, class_counts: Sequence[Sequence[int]] = CLASS_COUNTS, **changed: Any) -> dict[str, Any]:
        """Return a config in which client k trains on `class_counts[k][c]` samples of class c, and tests on two."""
        path = self.folder / f"partition-{len(list(self.folder.glob('partition-*')))}.npz"
        partition_file.save(make_partition(class_counts), path)
        settings: dict[str, Any] = {
            "method": {"name": self.method.name, **self.fields},
            "data": {"dataset": "toy", "partition": {"scheme": "file", "path": str(path)}},
            "models": {"group": self.models},
            "clients": len(class_counts),
            "rounds": 2,
            "train": {"batch_size": BATCH, "lr": 0.05},
        }
        engine = {"device": self.device} | changed.get("engine", {"name": "serial"})
        return settings | changed | {"engine": engine}

    def config(self, class_counts: Sequence[Sequence[int]] = CLASS_COUNTS, **changed: Any) -> Config:
        return parse(self.settings(class_counts, **changed))

    def federation(self, config: Config, method: Method | None = None) -> SimulatedFederation:
        chosen = method or self.method(**self.fields)
        return federations.build_federation(config, data=self.data, method=chosen)

    # runs

    def run(
        self,
        config: Config | None = None,
        *,
        method: Method | None = None,
        wrap: WrapEngine | None = None,
        evaluate: bool = False,
        memory: int = 1 << 30,
        selected: Callable[[int], tuple[str, ...]] | None = None,
        max_ratio: float | None = None,
    ) -> Outcome:
        """Run all rounds on the serial engine, or on the engine that `wrap` puts around it."""
        chosen = config or self.config()
        federation = self.federation(chosen, method)
        federation.place = placement.main_place(chosen)
        roster = federation.profiles()
        federation.check_needs(roster)
        outcome = run_on_serial(
            federation,
            federation.server(roster),
            wrap=wrap,
            evaluate=evaluate,
            memory=memory,
            selected=selected,
            store=FolderStore(self.new_folder()),
            max_ratio=max_ratio,
        )
        self.hashes.append(outcome.hash)
        return outcome

    def reference(self) -> Reference:
        """Return the method's run without changes, in which no client fails."""
        fields = json.dumps(self.fields, sort_keys=True)
        reference = _reference(self.method, fields, self.samples, self.device)  # type: ignore[arg-type]  # a class
        self.hashes.append(reference.hash)
        return reference

    def experiment(self, settings: Mapping[str, Any], folder: Path | None = None, **options: Any) -> dict[str, Any]:
        """Run an experiment with a run folder, checkpoints and the engine that the settings name."""
        method = self.method(**self.fields)
        result = api.run(dict(settings), data=self.data, method=method, out=folder or self.new_folder(), **options)
        self.hashes.append(str(result["state_hash"]))
        return result

    def new_folder(self) -> Path:
        self._runs += 1
        return self.folder / f"run-{self._runs}"


def make_partition(class_counts: Sequence[Sequence[int]]) -> partition_file.Partition:
    """Return sample indices by client: training samples from the start of every class, test samples from its end."""
    taken = [0] * CLASSES
    train = []
    for counts in class_counts:
        indices: list[int] = []
        for label, count in enumerate(counts):
            start = label * PER_CLASS + taken[label]
            indices += range(start, start + count)
            taken[label] += count
        train.append(np.array(sorted(indices), dtype=np.int64))
    ends = np.array([(label + 1) * PER_CLASS - n for label in range(CLASSES) for n in (2, 1)], dtype=np.int64)
    if max(taken) > PER_CLASS - 2:
        raise ValueError(f"a class has {PER_CLASS - 2} training samples; {max(taken)} were requested")
    return partition_file.Partition(tuple(train), tuple(ends for _ in class_counts))
