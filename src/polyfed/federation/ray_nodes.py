"""A federation on machines that share no disk: what goes to a node, and how the same clients are made there."""

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
from polyfed.federation.simulation import SimulatedFederation, file_format
from polyfed.runs.state_store import FolderStore

MAKER = "polyfed.federation.ray_nodes:host_on_node"
FILES = ("indices.npy", "offsets.npy")  # of a description: who has which samples


def ray_engine(federation: SimulatedFederation, store: Path, scratch: Path) -> RayEngine:
    """The clients of a federation on a Ray cluster; their states are kept here, in `store`."""
    wanted = federation.config.engine
    workers = wanted.workers if isinstance(wanted.workers, int) else None
    cluster = Cluster(wanted.address, workers, WorkerResources(wanted.cpus_per_worker, wanted.gpus_per_worker))
    try:
        count = cluster.worker_count(workers, max(1, federation.config.per_round))
        description = federation.describe_for_workers(scratch)
        files = [(scratch / name).read_bytes() for name in FILES]
        return RayEngine(cluster, MAKER, description, files, FolderStore(store), count, timeout=wanted.timeout)
    except BaseException:
        cluster.close()
        raise


def host_on_node(description: Mapping[str, Any], files: Sequence[bytes], store: StateStore) -> Host:
    """What a worker on any node runs on."""
    with tempfile.TemporaryDirectory() as folder:  # the files stay mapped when their names are gone
        for name, content in zip(FILES, files, strict=True):
            (Path(folder) / name).write_bytes(content)
        there = {**description, "indices": folder, "dataset": str(_dataset_here(description)), "search": sys.path}
        federation = SimulatedFederation.from_description(there)
    engine = federation.config.engine
    return Host(federation, store, size_in_bytes(engine.memory_budget), size_in_bytes(engine.message_limit))


def _dataset_here(description: Mapping[str, Any]) -> Path:
    """The dataset's folder in this node's cache: the one of the description, or made here from the same files."""
    named = Path(description["dataset"])
    if datasets.is_cached(named):
        return named
    config = Config.from_dict(description["config"])
    data = config.data
    node = platform.node()
    try:
        made = datasets.load(
            data.dataset, root=Path(data.root) if data.root else None, how=file_format(config)
        ).folder
    except PolyfedError as error:
        raise InputError(f"node {node} has neither {named} nor what it is made from: {error}") from None
    if made.name != named.name:  # the name holds a digest of the content
        raise InputError(f"dataset {data.dataset} on node {node} is not the one of this run; compare their files")
    return made
