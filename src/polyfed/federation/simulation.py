"""A simulated federation: from a config to clients with models and data.

The server builds it with `build_federation`. Workers rebuild the same federation from the server's description.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyfed import catalogue, devices
from polyfed.config import Config, size_in_bytes
from polyfed.config.code_digest import check_unchanged, code_digests
from polyfed.config.start_files import start_files
from polyfed.core import rng
from polyfed.core.client import Client
from polyfed.core.client_host import Host
from polyfed.core.client_profile import Profile
from polyfed.core.method import Method
from polyfed.core.server import Server
from polyfed.data import dataset as datasets
from polyfed.data import partition as partitions
from polyfed.data import partition_file
from polyfed.data.merged_splits import merge_test
from polyfed.data.partition_file import Partition
from polyfed.errors import InputError, RunError
from polyfed.federation import model_assignment, placement, user_code
from polyfed.federation.client_metadata import client_metadata
from polyfed.federation.secure_sums import with_secure_sums
from polyfed.federation.server_federation import ServerFederation
from polyfed.federation.start_weights import START_FILE, StartWeights
from polyfed.federation.user_imports import import_user_modules
from polyfed.models import ModelSpec
from polyfed.models.instances import WEIGHTS_FILE
from polyfed.models.slicing import skeleton
from polyfed.runs.folder import RunFolder
from polyfed.runs.state_store import FolderStore
from polyfed.training import Samples

USER_CODE = "user_code.py"
HOST_FACTORY = "polyfed.federation.simulation:host_from_description"


@dataclass
class SimulatedFederation(ServerFederation):
    """A federation whose clients all live on this machine or cluster. Clients are built on demand."""

    assigns_models = True

    config: Config
    dataset: datasets.Dataset
    partition: Partition
    matched_test: tuple[np.ndarray[Any, Any], ...] | None  # per client: indices of personal test samples, if matched
    specs: tuple[ModelSpec, ...]
    method: Method
    start: StartWeights = field(default_factory=lambda: StartWeights({}))
    global_test: Samples | None = field(init=False)

    def __post_init__(self) -> None:
        self.filter = catalogue.make_filter(self.config.server_filter)
        self.method = with_secure_sums(self.config, self.method)
        test, limit = self.dataset.test, self.config.data.test_limit
        self.global_test = None if test is None else Samples(test.inputs, test.labels)
        if self.global_test is not None and self.config.data.validation:
            self.global_test = self._subset(np.sort(np.concatenate(self.partition.test)), self.dataset.train)
        if self.global_test is not None and limit is not None and limit < len(self.global_test):
            stream = rng.numpy_generator(self.seed, "test_limit")
            chosen = datasets.balanced_limit(self.global_test.labels.numpy(), limit, stream)
            self.global_test = self.global_test.subset(torch.from_numpy(chosen))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.dataset.shape

    @property
    def classes(self) -> int:
        return self.dataset.classes

    @property
    def source(self) -> str:
        return self.dataset.source

    @property
    def notes(self) -> Sequence[str]:
        subset = f"dataset {self.dataset.name}: {self.dataset.source}"
        notes = (*self.partition.notes, *((subset,) if " of " in self.dataset.source else ()))
        return (*notes, *placement.start_notes(self.config.engine))

    def num_samples(self, k: int) -> int:
        return len(self.partition.train[k])

    def save_metadata(self, folder: RunFolder, roster: Sequence[Profile]) -> None:
        """Write `partition.npz` and `clients.json`. A resumed run must have the partition it started with."""
        partition, path = self.partition, folder.partition_file
        if not path.exists():
            partition_file.save(partition, path)
        elif not partition_file.holds(path, partition, samples=len(self.dataset.train.labels)):
            raise RunError(f"the data or its partition has changed since this run started; compare {path}")
        if not folder.clients_file.exists():
            folder.write_clients(client_metadata(roster, self.dataset, partition, self.matched_test))

    # clients

    def make_client(self, name: str) -> Client:
        """Build a client in its initial state."""
        k = self.positions[name]
        spec = self.specs[k]
        shared = self.config.models.shared_init
        model = self.common_model(spec.text) if shared else self.model(spec, "client", name)
        self.start.load_into(model, name)
        train = self._subset(self.partition.train[k], self.dataset.train)
        if self.matched_test is not None and self.dataset.test is not None:
            test = self._subset(self.matched_test[k], self.dataset.test)
        else:
            test = self._subset(self.partition.test[k], self.dataset.train)
        train, test = self.place.samples(train), self.place.samples(test)
        device = self.place.device
        return Client(self.profile(k), model, train, test, self.training, build=self.common_model, device=device)

    def check(self, roster: tuple[Profile, ...]) -> Server:
        self.start.check_method(self.method)
        for name, spec in zip(self.names, self.specs, strict=True) if self.start else ():
            self.start.check(name, skeleton(spec, shape=self.shape, classes=self.classes))
        return super().check(roster)

    def _subset(self, indices: np.ndarray[Any, Any], split: datasets.Split) -> Samples:
        index = torch.tensor(indices)  # a copy: the array may be memory-mapped and read-only
        return Samples(split.inputs[index], split.labels[index])

    # workers

    def describe_for_workers(self, folder: Path) -> dict[str, Any]:
        """Return what a worker needs to rebuild this federation, as JSON. Write index arrays to files in `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        parts = [*self.partition.train, *self.partition.test, *(self.matched_test or ())]
        np.save(folder / "indices.npy", np.concatenate([np.asarray(p, np.int64) for p in parts]))
        np.save(folder / "offsets.npy", np.cumsum([0, *(len(p) for p in parts)]))
        (folder / USER_CODE).write_text(self.config.user_code)
        (folder / WEIGHTS_FILE).write_bytes(user_code.initial_weights(self.config))
        positions = {spec: position for position, spec in enumerate(dict.fromkeys(self.specs))}
        return {
            "config": self.config.to_dict(),
            "dataset": str(self.dataset.folder),
            "indices": str(folder),
            "start": self.start.write(folder / START_FILE),
            "architectures": [spec.to_json() for spec in positions],
            "specs": [positions[spec] for spec in self.specs],
            "imports": [*self.config.imports, *self._catalogue_modules()],
            "own_models": {
                name: user_code.fingerprint(own.factory) for name, own in user_code.own_models(self.config).items()
            },
            "code": code_digests(self.config),
            "search": sys.path,
            "store": "",
            "device_source": devices.source_of(self.config.engine.device),
            # calibrated once, here: workers need no privacy accountant
            "multipliers": {p.field: p.multiplier for p in self.guard.protections} if self.guard else {},
        }

    def _catalogue_modules(self) -> list[str]:
        """Return the modules of the method and the filter. Workers import them without reading the catalogue."""
        infos = [(type(self.method).__module__, catalogue.find_method(self.method.name))]
        if self.filter is not None:
            infos.append((type(self.filter).__module__, catalogue.filters().get(self.filter.name)))
        return [module for module, info in infos if info is not None and info.module == module]

    @classmethod
    def from_description(cls, description: Mapping[str, Any]) -> SimulatedFederation:
        """Rebuild the federation of `describe_for_workers` in a worker."""
        devices.load_source(description["device_source"])
        config = Config.from_dict(description["config"])
        sys.path[:] = description["search"]
        check_unchanged(description["code"])
        import_user_modules(description["imports"])
        folder = Path(description["indices"])
        if (folder / USER_CODE).stat().st_size:
            import_user_modules([str(folder / USER_CODE)])
        user_code.check_models(description["own_models"])
        indices = np.load(folder / "indices.npy", mmap_mode="r")
        offsets = np.load(folder / "offsets.npy")
        parts = [indices[start:end] for start, end in itertools.pairwise(offsets)]
        n = config.clients
        architectures = [ModelSpec.from_json(entry) for entry in description["architectures"]]
        federation = cls(
            config,
            datasets.open_cached(Path(description["dataset"])),
            Partition(tuple(parts[:n]), tuple(parts[n : 2 * n]), ()),
            tuple(parts[2 * n :]) or None,
            tuple(architectures[position] for position in description["specs"]),
            catalogue.make(config.method),
            StartWeights.from_workers_file(folder / START_FILE, description["start"]),
        )
        federation.multipliers = description["multipliers"]
        return federation


def build_federation(
    config: Config, *, data: datasets.Dataset | None = None, method: Method | None = None
) -> SimulatedFederation:
    """Build the federation of a config: import user modules, make the method, assign models, partition the data.

    An open dataset or a method object replaces the one that the config names.
    """
    import_user_modules(config.imports)
    method = method or catalogue.make(config.method)
    specs = model_assignment.assign_models(config)
    data = data or _load_dataset(config)
    if config.data.merge_test:
        data = merge_test(data)
    notes: tuple[str, ...] = ()
    if model_assignment.assigned_by_size(config):
        chosen = model_assignment.assign_by_size(config, data)
        specs = (chosen,) * config.clients
        notes = (f"every client has {chosen.label}, the {config.models.assign} member: capacities are ignored",)
    if data.vocabulary:
        specs = tuple(replace(spec, vocabulary=data.vocabulary) for spec in specs)
    partition = _partition(config, data, notes)
    matched = _matched_test(config, data, partition)
    return SimulatedFederation(config, data, partition, matched, specs, method, StartWeights(start_files(config)))


def _load_dataset(config: Config) -> datasets.Dataset:
    root = Path(config.data.root).expanduser() if config.data.root else None
    if root is not None and datasets.is_cached(root):
        return datasets.open_cached(root)  # a dataset made from arrays exists only in the cache
    return datasets.load(config.data.dataset, root=root, how=file_format(config))


def file_format(config: Config) -> datasets.Format:
    """Return how the files of the dataset are read, from the `data` section."""
    data = config.data
    return datasets.Format(
        data.layout, data.label, data.text, data.vocabulary, data.text_length, data.resize, data.tokenizer
    )


def _partition(config: Config, data: datasets.Dataset, notes: tuple[str, ...]) -> Partition:
    """Split the training samples between clients, after `data.limit`. Append `notes` to those of the partition."""
    labels = data.train.labels.numpy()
    used = np.arange(len(labels))
    settings, limit = config.data.partition, config.data.limit
    # the limit does not apply to a partition file, which holds indices into the whole training split
    if limit is not None and limit < len(labels) and settings.get("scheme") != "file":
        used = datasets.balanced_limit(labels, limit, rng.numpy_generator(config.seed, "limit"))
    partition = partitions.make(
        labels[used],
        data.classes,
        config.clients,
        settings,
        test_fraction=config.data.test_fraction,
        rng=rng.numpy_generator(config.seed, "partition"),
        columns={name: np.asarray(values)[used] for name, values in data.train.columns.items()},
        names=config.names,
    )
    partition = Partition(
        tuple(used[p] for p in partition.train), tuple(used[p] for p in partition.test), (*partition.notes, *notes)
    )
    if not config.data.validation:
        return partition
    stream = rng.numpy_generator(config.seed, "validation")
    return partitions.validation_split(partition, labels, config.data.validation, stream)


def _matched_test(
    config: Config, data: datasets.Dataset, partition: Partition
) -> tuple[np.ndarray[Any, Any], ...] | None:
    """Return per client the test samples that match its label distribution, if `data.personal_test` is 'matched'."""
    if config.data.personal_test != "matched" or config.data.validation:
        return None  # validation samples have the client's label distribution already
    if data.test is None:
        raise InputError(f"data.personal_test is 'matched', but {data.name} has no test split; use 'held-out'")
    return partitions.matched_test(
        partition,
        data.train.labels.numpy(),
        data.test.labels.numpy(),
        data.classes,
        rng.numpy_generator(config.seed, "matched"),
    )


def host_from_description(description: Mapping[str, Any]) -> Host:
    """Build the host of a pool worker."""
    federation = SimulatedFederation.from_description(description)
    federation.place = placement.worker_place(description, federation.config)
    return make_host(federation, Path(description["store"]))


def make_host(federation: SimulatedFederation, store: Path) -> Host:
    """Build a host that runs the clients of a federation and saves their states in a folder."""
    engine = federation.config.engine
    budget, limit = placement.host_budget(federation.place, engine), size_in_bytes(engine.message_limit)
    return Host(federation, FolderStore(store), budget, limit)
