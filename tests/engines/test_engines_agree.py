"""Every engine with any number of workers gives bit-identical results."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet
from tests.tiers import always_if

from polyfed import api
from polyfed.config.sections import EngineConfig
from polyfed.federation import placement

METHODS: dict[str, dict[str, Any]] = {
    "local": {},
    "fedavg": {"models": {"group": ["tiny-resnet"]}},
    "lg-fedavg": {},
    "feddistill": {},
    "fedproto": {},
}
# skewed shares, half of the clients a round, clients that rejoin: everything that could make an order matter
SETTING: dict[str, Any] = {"rounds": 3, "clients": 12, "participation": 0.5}


def run(method: str, engine: dict[str, Any], out: Path, **more: Any) -> dict[str, Any]:
    return api.run("quickstart", method=method, engine=engine, out=out, **{**SETTING, **METHODS[method], **more})


@cache
def reference(method: str, folder: Path) -> dict[str, Any]:
    return run(method, {"name": "serial"}, folder / f"serial-{method}")


def with_workers(method: str, workers: int) -> ParameterSet:
    chosen = workers == 2 or method == "fedproto"
    return pytest.param(method, workers, marks=always_if(chosen))


@pytest.mark.parametrize(
    ("method", "workers"), [with_workers(method, workers) for method in METHODS for workers in (1, 2, 3)]
)
def test_pool_equals_serial(
    method: str, workers: int, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    serial = reference(method, tmp_path_factory.getbasetemp())
    pool = run(method, {"name": "pool", "workers": workers}, tmp_path / "pool")
    assert pool["state_hash"] == serial["state_hash"]
    assert pool["accuracy"] == serial["accuracy"]
    assert pool["loss"] == serial["loss"]
    assert pool["bytes"] == serial["bytes"]
    assert pool["failures"] == []


def test_spawned_workers_equal_serial(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    serial = reference("fedproto", tmp_path_factory.getbasetemp())
    spawned = run("fedproto", {"name": "pool", "workers": 1, "start": "spawn"}, tmp_path / "spawned")
    assert spawned["state_hash"] == serial["state_hash"] and spawned["failures"] == []


@pytest.mark.parametrize(("platform", "start"), [("linux", "fork"), ("darwin", "spawn"), ("win32", "serial")])
def test_auto_chooses_how_workers_start(platform: str, start: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", platform)
    if platform == "win32":
        monkeypatch.delattr("os.fork")
    assert placement.worker_start(EngineConfig()) == start
    assert len(placement.start_notes(EngineConfig())) == (start != "fork")
    assert placement.start_notes(EngineConfig(start="fork")) == []


def test_another_seed_gives_another_result(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = run("fedproto", {"name": "serial"}, tmp_path / "run", seed=1)
    assert other["state_hash"] != reference("fedproto", tmp_path_factory.getbasetemp())["state_hash"]


def test_the_memory_budget_does_not_change_the_result(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """With memory for one client, every state is read from the disk."""
    small = run("fedproto", {"name": "pool", "workers": 2, "memory_budget": 1}, tmp_path / "run")
    assert small["state_hash"] == reference("fedproto", tmp_path_factory.getbasetemp())["state_hash"]
