"""A federation: from a config to clients with models and data. The same in this process and in every worker."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from polyfed import catalogue
from polyfed.config import Config, parse, size_in_bytes
from polyfed.core import rng
from polyfed.core.client import Client
from polyfed.core.host import Host
from polyfed.core.method import Method
from polyfed.core.profile import Profile
from polyfed.data import dataset as datasets
from polyfed.data import partition as partitions
from polyfed.data import partition_file
from polyfed.data.partition_file import Partition
from polyfed.errors import InputError, PolyfedError, RunError
from polyfed.federation.client_metadata import shares
from polyfed.federation.plan import Plan
from polyfed.models import ModelSpec, group
from polyfed.models.slicing import skeleton
from polyfed.runs.folder import RunFolder
from polyfed.runs.state_store import FolderStore
from polyfed.training import Samples

MAKER = "polyfed.federation.simulation:host_from_description"


@dataclass
class Federation(Plan):
    """Who takes part, with which model and which data; makes clients on demand."""

    config: Config
    dataset: datasets.Dataset
    partition: Partition
    matched: tuple[np.ndarray[Any, Any], ...] | None  # personal test samples in the test split, where asked for
    specs: tuple[ModelSpec, ...]
    method: Method
    global_test: Samples | None = field(init=False)

    def __post_init__(self) -> None:
        self.filter = catalogue.make_filter(self.config.server_filter)
        test, limit = self.dataset.test, self.config.data.test_limit
        self.global_test = None
        if test is not None:
            self.global_test = Samples(test.images, test.labels)
            if limit is not None and limit < len(test.labels):
                stream = rng.numpy_generator(self.seed, "test_limit")
                chosen = datasets.balanced_limit(test.labels.numpy(), limit, stream)
                self.global_test = self.global_test.subset(torch.from_numpy(chosen))

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.dataset.shape

    @property
    def classes(self) -> int:
        return self.dataset.classes

    @property
    def source(self) -> str:
        return self.dataset.source

    @property
    def notes(self) -> Sequence[str]:
        return self.partition.notes

    def samples(self, k: int) -> int:
        return len(self.partition.train[k])

    def keep(self, folder: RunFolder, roster: Sequence[Profile]) -> None:
        """Write the split; a run that goes on must find the one it began with."""
        split, path = self.partition, folder.partition_file
        if path.exists():
            before = partition_file.read(path, clients=self.config.clients, samples=len(self.dataset.train.labels))
            pairs = zip((*split.train, *split.test), (*before.train, *before.test), strict=True)
            if not all(np.array_equal(now, then) for now, then in pairs):
                raise RunError(f"the data or its split is not the one this run began with; compare {path}")
        else:
            partition_file.save(split, path)
        if not folder.clients_file.exists():
            folder.write_clients(shares(roster, self.dataset, split, self.matched))

    # clients

    def make(self, name: str) -> Client:
        """A client as it is before its first step."""
        k = self.positions[name]
        spec = self.specs[k]
        shared = self.config.models.shared_init
        model = self.common_model(spec.text) if shared else self.model(spec, "client", name)
        train = self._samples(self.partition.train[k], self.dataset.train)
        if self.matched is not None and self.dataset.test is not None:
            test = self._samples(self.matched[k], self.dataset.test)
        else:
            test = self._samples(self.partition.test[k], self.dataset.train)
        return Client(self.profile(k), model, train, test, self.training, build=self.common_model)

    def _samples(self, indices: np.ndarray[Any, Any], split: datasets.Split) -> Samples:
        at = torch.tensor(indices)  # a copy: the array may be a read-only map
        return Samples(split.images[at], split.labels[at])

    # to a worker and back

    def describe(self, folder: Path) -> dict[str, Any]:
        """All that a worker needs to make the same clients, as JSON; index arrays go to a file that it maps."""
        folder.mkdir(parents=True, exist_ok=True)
        parts = [*self.partition.train, *self.partition.test, *(self.matched or ())]
        np.save(folder / "indices.npy", np.concatenate([np.asarray(p, np.int64) for p in parts]))
        np.save(folder / "offsets.npy", np.cumsum([0, *(len(p) for p in parts)]))
        return {
            "config": self.config.to_dict(),
            "dataset": str(self.dataset.folder),
            "indices": str(folder),
            "specs": [spec.to_json() for spec in self.specs],
            "imports": list(self.config.imports),
            "search": sys.path,
            "store": "",
            # calibrated once: workers need no accountant
            "multipliers": {p.field: p.multiplier for p in self.guard.protections} if self.guard else {},
        }

    @classmethod
    def from_description(cls, description: Mapping[str, Any]) -> Federation:
        config = parse(description["config"])
        sys.path[:] = description["search"]
        import_all(description["imports"])
        folder = Path(description["indices"])
        indices = np.load(folder / "indices.npy", mmap_mode="r")
        offsets = np.load(folder / "offsets.npy")
        parts = [indices[a:b] for a, b in itertools.pairwise(offsets)]
        n = config.clients
        made = cls(
            config,
            datasets.open_cached(Path(description["dataset"])),
            Partition(tuple(parts[:n]), tuple(parts[n : 2 * n]), ()),
            tuple(parts[2 * n :]) or None,
            tuple(ModelSpec.from_json(entry) for entry in description["specs"]),
            catalogue.make(config.method),
        )
        made.multipliers = description["multipliers"]
        return made


def from_config(config: Config) -> Federation:
    """Everything a config asks for: data loaded and shared out, models chosen, the method made."""
    import_all(config.imports)
    method = catalogue.make(config.method)
    root = Path(config.data.root).expanduser() if config.data.root else None
    specs = assign_models(config)
    if root is not None and datasets.is_cached(root):
        data = datasets.open_cached(root)  # a dataset that was made from arrays is kept in the cache alone
    else:
        data = datasets.load(config.data.dataset, root=root)
    return from_parts(config, method, specs, data)


def from_parts(config: Config, method: Method, specs: tuple[ModelSpec, ...], data: datasets.Dataset) -> Federation:
    """A federation over a dataset that is already open."""
    labels = data.train.labels.numpy()
    used = np.arange(len(labels))
    if config.data.limit is not None and config.data.limit < len(labels):
        used = datasets.balanced_limit(labels, config.data.limit, rng.numpy_generator(config.seed, "limit"))
    settings = config.data.partition
    if settings.get("scheme") == "file":
        used = np.arange(len(labels))  # a partition file speaks of the whole training split
    made = partitions.make(
        labels[used],
        data.classes,
        config.clients,
        settings,
        test_fraction=config.data.test_fraction,
        rng=rng.numpy_generator(config.seed, "partition"),
    )
    notes = made.notes
    if config.models.assign in ("smallest", "largest") and config.models.clients is None:  # AllSmall, AllLarge (A9)
        members = _members(config)
        sizes = [_parameters(spec, data) for spec in members]
        chosen = members[sizes.index((min if config.models.assign == "smallest" else max)(sizes))]
        specs = (chosen,) * config.clients
        notes = (
            *notes,
            f"every client has {chosen.label}, the {config.models.assign} member: capacities are ignored",
        )
    partition = Partition(tuple(used[p] for p in made.train), tuple(used[p] for p in made.test), notes)
    matched = None
    if config.data.personal_test == "matched":
        if data.test is None:
            raise InputError(f"data.personal_test is 'matched', but {data.name} has no test part; use 'held-out'")
        matched = partitions.matched_test(
            partition, labels, data.test.labels.numpy(), data.classes, rng.numpy_generator(config.seed, "matched")
        )
    return Federation(config, data, partition, matched, specs, method)


def assign_models(config: Config) -> tuple[ModelSpec, ...]:
    """Which client gets which architecture (experiments 2.7); independent of the data."""
    chosen, n = config.models, config.clients
    if chosen.clients is not None:
        if len(chosen.clients) != n:
            raise InputError(f"models.clients has {len(chosen.clients)} entries for {n} clients")
        specs = [ModelSpec.of(entry) for entry in chosen.clients]
    else:
        members = _members(config)
        if chosen.assign == "round-robin":
            turns = [k % len(members) for k in range(n)]
        elif chosen.assign == "blocks":
            turns = [k * len(members) // n for k in range(n)]
        elif chosen.assign in ("smallest", "largest"):
            turns = [0] * n  # which one that is depends on the data's shape
        else:
            turns = rng.numpy_generator(config.seed, "models").integers(len(members), size=n).tolist()
        specs = [members[turn] for turn in turns]
    return tuple(_with_features(config, specs))


def _members(config: Config) -> list[ModelSpec]:
    """The architectures that are given out."""
    named = config.models.group
    members = list(group(named)) if isinstance(named, str) else [ModelSpec.of(entry) for entry in named]
    if not members:
        raise InputError("models.group is empty; name a group or at least one model")
    return _with_features(config, members)


def _with_features(config: Config, specs: Sequence[ModelSpec]) -> list[ModelSpec]:
    """Brought to the common feature width that a config asks for."""
    chosen = config.models
    wanted = {"feature_dim": chosen.feature_dim, "feature_map": chosen.feature_map}
    wanted = {key: value for key, value in wanted.items() if value is not None}
    return [ModelSpec.from_json({**spec.to_json(), **wanted}) for spec in specs]


def _parameters(spec: ModelSpec, data: datasets.Dataset) -> int:
    model = skeleton(spec, shape=data.shape, classes=data.classes)
    return sum(parameter.numel() for parameter in model.parameters())


def import_all(modules: Sequence[str]) -> None:
    """Import the modules, or files, in which a user registers methods and models."""
    for name in modules:
        try:
            if name.endswith(".py"):
                import_file(Path(name).expanduser().resolve())
            else:
                importlib.import_module(name)
        except PolyfedError:
            raise
        except Exception as error:  # whatever a user's file does
            raise InputError(f"imports: '{name}' cannot be imported: {type(error).__name__}: {error}") from None


def import_file(path: Path) -> ModuleType:
    """The module in a file, imported once."""
    alias = f"polyfed_import_{path.stem}_{rng.derive(str(path)):x}"
    running = getattr(sys.modules.get("__main__"), "__file__", None)
    if running is not None and Path(running).resolve() == path:
        return sys.modules["__main__"]  # running the main script once more would start another run
    if alias in sys.modules:
        return sys.modules[alias]
    spec = importlib.util.spec_from_file_location(alias, path)
    if spec is None or spec.loader is None or not path.exists():
        raise InputError(f"imports: there is no file {path}")
    sys.modules[alias] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[alias]
        raise
    return module


def host_from_description(description: Mapping[str, Any]) -> Host:
    """What a worker runs on."""
    return host_of(Federation.from_description(description), Path(description["store"]))


def host_of(federation: Federation, store: Path) -> Host:
    engine = federation.config.engine
    budget, limit = size_in_bytes(engine.memory_budget), size_in_bytes(engine.message_limit)
    return Host(federation, FolderStore(store), budget, limit)
