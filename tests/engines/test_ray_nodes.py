"""Federations on Ray nodes that share no disk with the driver."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from polyfed.config import parse
from polyfed.core.codec import decode, encode
from polyfed.core.engine import Call, Task
from polyfed.data import dataset as datasets
from polyfed.engines.ray_actor import TaskStateStore
from polyfed.errors import InputError
from polyfed.federation import ray_nodes, simulation

SETTING: dict[str, Any] = {"method": "local", "clients": 3, "data": {"dataset": "digits", "limit": 200}}


def packed(made: simulation.SimulatedFederation, folder: Path) -> tuple[dict[str, Any], list[bytes]]:
    """Return what a driver sends. Its own files are deleted."""
    description = made.describe_for_workers(folder / "scratch")
    files = [(folder / "scratch" / name).read_bytes() for name in ray_nodes.FILES]
    shutil.rmtree(folder / "scratch")
    return description, files


def test_a_node_has_the_same_clients_as_the_driver(tmp_path: Path) -> None:
    made = simulation.build_federation(parse(SETTING))
    here = simulation.make_host(made, tmp_path / "states")
    store = TaskStateStore()
    there = ray_nodes.host_on_node(*packed(made, tmp_path), store)
    call, nothing = Call(1, 1, ("train",), ("train",)), encode({}).data
    for name in made.names:
        ours, theirs = (host.handle(call, Task(name, 0), nothing) for host in (here, there))
        assert theirs.failure is None and (theirs.frame, theirs.digest) == (ours.frame, ours.digest)
        state = decode(store.take_new(name))
        assert all(torch.isfinite(value).all() for value in state.weights("model").values())


def test_a_node_builds_the_dataset_in_its_own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = simulation.build_federation(parse(SETTING))
    description, files = packed(made, tmp_path)
    monkeypatch.setenv("POLYFED_CACHE", str(tmp_path / "node"))
    elsewhere = {**description, "dataset": f"{tmp_path}/no/{made.dataset.folder.name}"}
    ray_nodes.host_on_node(elsewhere, files, TaskStateStore())
    assert datasets.is_cached(tmp_path / "node" / made.dataset.folder.name)


def test_missing_data_is_refused(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    images = draw.integers(0, 255, (60, 8, 8), dtype=np.uint8)
    data = datasets.from_arrays("mine", images, np.arange(60) % 3, cache=tmp_path / "driver")
    config = parse({**SETTING, "data": {"dataset": "mine", "root": str(data.folder)}, "evaluate": {"global": False}})
    made = simulation.build_federation(config)
    description, files = packed(made, tmp_path)
    shutil.rmtree(tmp_path / "driver")
    with pytest.raises(InputError, match=r"node \S+ has neither .*mine-\w+ nor the files of the dataset") as refused:
        ray_nodes.host_on_node(description, files, TaskStateStore())
    assert "\n" not in str(refused.value)


def test_other_data_under_the_same_name_is_refused(tmp_path: Path) -> None:
    description, files = packed(simulation.build_federation(parse(SETTING)), tmp_path)
    with pytest.raises(InputError, match="differs from that of this run"):
        ray_nodes.host_on_node(
            {**description, "dataset": f"{tmp_path}/digits-0123456789abcdef"}, files, TaskStateStore()
        )


def test_a_missing_user_file_is_named(tmp_path: Path) -> None:
    description, files = packed(simulation.build_federation(parse(SETTING)), tmp_path)
    with pytest.raises(InputError, match=r"there is no file .*mine\.py"):
        ray_nodes.host_on_node({**description, "imports": [f"{tmp_path}/mine.py"]}, files, TaskStateStore())
