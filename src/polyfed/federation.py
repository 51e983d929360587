"""A federation: from a config to clients with models and data. The same in this process and in every worker."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyfed import catalogue, looking, splitting
from polyfed.config import Config, parse, size_in_bytes
from polyfed.core import needs as needs_room
from polyfed.core import rng
from polyfed.core.client import Client
from polyfed.core.host import Host
from polyfed.core.method import Method
from polyfed.core.profile import Profile, layout
from polyfed.core.server import Server
from polyfed.data import dataset as datasets
from polyfed.data import partition as partitions
from polyfed.data.partition_file import Partition
from polyfed.errors import InputError, PolyfedError
from polyfed.models import ModelSpec, SplitModel, build, group
from polyfed.models.slicing import Family, skeleton
from polyfed.runs.store import FolderStore
from polyfed.training import Samples, TrainSettings

MAKER = "polyfed.federation:host_from_description"


@dataclass
class Federation:
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
        self._plans: dict[ModelSpec, Profile] = {}
        test, limit = self.dataset.test, self.config.data.test_limit
        self.global_test = None
        if test is not None:
            self.global_test = Samples(test.images, test.labels)
            if limit is not None and limit < len(test.labels):
                stream = rng.numpy_generator(self.seed, "test_limit")
                chosen = datasets.balanced_limit(test.labels.numpy(), limit, stream)
                self.global_test = self.global_test.subset(torch.from_numpy(chosen))

    @property
    def seed(self) -> int:
        return self.config.seed

    @property
    def training(self) -> TrainSettings:
        return TrainSettings(**self.config.train.model_dump())

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(str(k) for k in range(self.config.clients))

    # models

    def model(self, spec: ModelSpec, *stream: str) -> SplitModel:
        """An architecture with initial weights from a stream."""
        with rng.seeded(self.seed, "init", *stream):
            model = build(spec, shape=self.dataset.shape, classes=self.dataset.classes)
        return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def common_model(self, spec: str) -> SplitModel:
        """An architecture with the initial weights that every party gives it (R9)."""
        return self.model(ModelSpec.parse(spec), "common", spec)

    @cached_property
    def family(self) -> Family:
        """The one model that a server may keep, and the sub-models that clients hold of it."""
        chosen = self.config.models.server
        whole = _spec(chosen) if chosen is not None else max(self.specs, key=lambda spec: self._plan(spec).size)
        return Family(
            whole.text,
            (spec.text for spec in self.specs),
            shape=self.dataset.shape,
            classes=self.dataset.classes,
            apart=self.config.splitting == "architecture",
        )

    def _plan(self, spec: ModelSpec) -> Profile:
        """What an architecture says of every client that has it."""
        if spec not in self._plans:
            model = skeleton(spec, shape=self.dataset.shape, classes=self.dataset.classes)
            self._plans[spec] = Profile(
                "",
                spec.label,
                layout(model),
                layout(model.head),
                model.feature_dim,
                self.dataset.classes,
                0,
                spec.text,
                frozenset(name for name, _ in model.named_buffers()),
            )
        return self._plans[spec]

    def profile(self, k: int) -> Profile:
        """What the server knows of a client."""
        return dataclasses.replace(
            self._plan(self.specs[k]), name=self.names[k], samples=len(self.partition.train[k])
        )

    def profiles(self) -> tuple[Profile, ...]:
        """What the server knows of every client."""
        return tuple(self.profile(k) for k in range(len(self.names)))

    def check_needs(self, profiles: Sequence[Profile]) -> None:
        """Refuse a method that cannot work with these clients, naming those that can."""
        others = [(name, catalogue.load(name).needs) for name in catalogue.catalogue() if name != self.method.name]
        title, needs = type(self.method).__name__, self.method.needs
        if self.config.splitting != "none":
            splitting.check_method(self.method, self.config.splitting)
            needs = dataclasses.replace(needs, same_architecture=False)
        needs_room.check(title, needs, profiles, others)
        cuts = needs.sub_models or self.config.splitting not in ("none", "architecture")
        if self.config.models.server is not None and not cuts:
            raise InputError(
                "models.server is given, but clients hold no sub-models of it; set splitting: layer, stage or width, "
                "or leave models.server out"
            )
        if needs.sub_models or self.config.splitting != "none":
            splitting.check_family(self.family, self.config.splitting)
        if self.filter is not None and not self.method.one_model:
            raise InputError(
                f"server_filter {self.filter.name} works on the update of one server model, which {title} does not "
                f"keep; use it with {', '.join(splitting.one_model_methods())}, or set server_filter: none"
            )
        self.method.check_training(self.training)

    def server(self, roster: tuple[Profile, ...]) -> Server:
        """The server before its first round."""
        return Server(
            roster,
            self.dataset.classes,
            self.config.rounds,
            self.seed,
            self.common_model,
            family=self.family if self.method.one_model else None,
            filter=self.filter,
        )

    def check(self, roster: tuple[Profile, ...]) -> None:
        """Everything that can be known to be wrong before anything is written or run."""
        self.check_needs(roster)
        looking.check(self.config.evaluate, self.method, roster, self.global_test)
        server = self.server(roster)
        if self.filter is not None:
            self.filter.check(server)
        self.method.init(server)  # an auxiliary model that does not exist or does not fit, for one

    # clients

    def make(self, name: str) -> Client:
        """A client as it is before its first step."""
        k = int(name)
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
        return cls(
            config,
            datasets.open_cached(Path(description["dataset"])),
            Partition(tuple(parts[:n]), tuple(parts[n : 2 * n]), ()),
            tuple(parts[2 * n :]) or None,
            tuple(ModelSpec.from_json(entry) for entry in description["specs"]),
            catalogue.make(config.method),
        )


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
        specs = [_spec(entry) for entry in chosen.clients]
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
    members = list(group(named)) if isinstance(named, str) else [_spec(entry) for entry in named]
    if not members:
        raise InputError("models.group is empty; name a group or at least one model")
    return _with_features(config, members)


def _with_features(config: Config, specs: Sequence[ModelSpec]) -> list[ModelSpec]:
    """Brought to the common feature width that a config asks for."""
    width = config.models.feature_dim
    if width is None:
        return list(specs)
    return [ModelSpec.from_json({**spec.to_json(), "feature_dim": width}) for spec in specs]


def _parameters(spec: ModelSpec, data: datasets.Dataset) -> int:
    model = skeleton(spec, shape=data.shape, classes=data.classes)
    return sum(parameter.numel() for parameter in model.parameters())


def _spec(entry: str | dict[str, Any]) -> ModelSpec:
    return ModelSpec.parse(entry) if isinstance(entry, str) else ModelSpec.from_json(entry)


def import_all(modules: Sequence[str]) -> None:
    """Import the modules, or files, in which a user registers methods and models."""
    for name in modules:
        try:
            if name.endswith(".py"):
                _import_file(Path(name).expanduser().resolve())
            else:
                importlib.import_module(name)
        except PolyfedError:
            raise
        except Exception as error:  # whatever a user's file does
            raise InputError(f"imports: '{name}' cannot be imported: {type(error).__name__}: {error}") from None


def _import_file(path: Path) -> None:
    alias = f"polyfed_import_{path.stem}_{rng.derive(str(path)):x}"
    running = getattr(sys.modules.get("__main__"), "__file__", None)
    if alias in sys.modules or (running is not None and Path(running).resolve() == path):
        return  # it is here already; running the main script once more would start another run
    spec = importlib.util.spec_from_file_location(alias, path)
    if spec is None or spec.loader is None or not path.exists():
        raise InputError(f"imports: there is no file {path}")
    sys.modules[alias] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[alias]
        raise


def host_from_description(description: Mapping[str, Any]) -> Host:
    """What a worker runs on."""
    return host_of(Federation.from_description(description), Path(description["store"]))


def host_of(federation: Federation, store: Path) -> Host:
    engine = federation.config.engine
    budget, limit = size_in_bytes(engine.memory_budget), size_in_bytes(engine.message_limit)
    return Host(federation, FolderStore(store), budget, limit)
