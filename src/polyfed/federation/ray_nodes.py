"""A simulated federation on a Ray cluster. Nodes share no disk: each rebuilds the federation from a description."""

from __future__ import annotations

import platform
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from polyfed.config import Config, size_in_bytes
from polyfed.core.client_host import Host
from polyfed.core.engine import StateStore
from polyfed.data import dataset as datasets
from polyfed.engines.ray_cluster import Cluster, WorkerResources
from polyfed.engines.ray_engine import RayEngine
from polyfed.errors import InputError, PolyfedError
from polyfed.federation import placement
from polyfed.federation.simulation import USER_CODE, SimulatedFederation, file_format
from polyfed.federation.start_weights import START_FILE
from polyfed.models.instances import WEIGHTS_FILE
from polyfed.runs.state_store import FolderStore

HOST_FACTORY = "polyfed.federation.ray_nodes:host_on_node"
FILES = ("indices.npy", "offsets.npy", USER_CODE, WEIGHTS_FILE, START_FILE)  # samples, user code, initial weights


def ray_engine(federation: SimulatedFederation, store: Path, scratch: Path) -> RayEngine:
    """Create an engine on a Ray cluster. Client states are saved on this machine, in `store`."""
    settings = federation.config.engine
    workers = settings.workers if isinstance(settings.workers, int) else None
    placement.ray_device(settings)  # raises an error if GPUs are wanted and none are reserved
    resources = WorkerResources(settings.cpus_per_worker, settings.gpus_per_worker)
    cluster = Cluster(settings.address, workers, resources)
    try:
        count = cluster.worker_count(workers, max(1, federation.config.per_round))
        description = federation.describe_for_workers(scratch)
        files = [(scratch / name).read_bytes() for name in FILES]
        return RayEngine(
            cluster,
            HOST_FACTORY,
            description,
            files,
            FolderStore(store),
            count,
            timeout=settings.timeout,
            costs=federation.client_costs(),
        )
    except BaseException:
        cluster.close()
        raise


def host_on_node(description: Mapping[str, Any], files: Sequence[bytes], store: StateStore) -> Host:
    """Build the host of a worker on any node, from the description and its index files."""
    with tempfile.TemporaryDirectory() as folder:  # the files stay memory-mapped after their deletion
        for name, content in zip(FILES, files, strict=True):
            (Path(folder) / name).write_bytes(content)
        dataset = str(_local_dataset(description))
        local = {**description, "indices": folder, "dataset": dataset, "search": sys.path, "code": {}}
        federation = SimulatedFederation.from_description(local)
    engine = federation.config.engine
    federation.place = placement.ray_place(federation.config)
    budget = placement.host_budget(federation.place, engine)
    return Host(federation, store, budget, size_in_bytes(engine.message_limit))


def _local_dataset(description: Mapping[str, Any]) -> Path:
    """Return the dataset's folder on this node. Decode the dataset from its files if it is not in the cache."""
    expected = Path(description["dataset"])
    if datasets.is_cached(expected):
        return expected
    config = Config.from_dict(description["config"])
    data = config.data
    node = platform.node()
    try:
        folder = datasets.load(
            data.dataset, root=Path(data.root) if data.root else None, how=file_format(config)
        ).folder
    except PolyfedError as error:
        raise InputError(f"node {node} has neither {expected} nor the files of the dataset: {error}") from None
    if folder.name != expected.name:  # the name contains a digest of the content
        raise InputError(f"dataset {data.dataset} on node {node} differs from that of this run; compare the files")
    return folder
