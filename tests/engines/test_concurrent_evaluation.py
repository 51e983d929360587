"""Evaluation in the middle of a round: equal results on every engine, concurrent with the server on the pool."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from polyfed import api

METHOD = '''
import time
from dataclasses import dataclass
from polyfed.core import Method, Needs, Sends, register, step

@register("slow-server")
@dataclass(frozen=True)
class SlowServer(Method):
    """Clients train, are evaluated and train again. The server works in between."""
    needs = Needs()
    sends = Sends()

    def round(self, server, cohort):
        cohort.call(self.train)
        cohort.measure("personal")
        started = time.perf_counter()
        time.sleep(0.5)
        server.record("worked", seconds=time.perf_counter() - started)
        cohort.call(self.train)

    @step()
    def train(self, client, msg):
        client.fit()
'''


def run(folder: Path, engine: str, **more: Any) -> dict[str, Any]:
    (folder / "slow_server.py").write_text(METHOD)
    return api.run(
        "quickstart",
        method={"name": "slow-server"},
        imports=[str(folder / "slow_server.py")],
        rounds=2,
        clients=6,
        engine={"name": engine},
        out=folder / f"{engine}{len(more)}",
        **more,
    )


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("measuring")
    return {engine: {**run(folder, engine), "folder": folder} for engine in ("serial", "pool")}


def test_results_are_equal_on_every_engine(results: dict[str, dict[str, Any]]) -> None:
    for same in ("accuracy", "state_hash", "loss"):
        assert results["pool"][same] == results["serial"][same]


def test_accuracy_is_measured_at_the_requested_moment(results: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    """Personal accuracy is measured after the first of two trainings, which equals local training."""
    once = api.run(
        "quickstart", method="local", rounds=1, clients=6, engine={"name": "serial"}, out=tmp_path / "once"
    )
    assert results["serial"]["accuracy"]["personal"]["by_round"][0] == once["accuracy"]["personal"]["final"]
    assert results["serial"]["accuracy"]["global"]["by_round"][0] != once["accuracy"]["global"]["final"]


def test_server_seconds_are_counted(results: dict[str, dict[str, Any]]) -> None:
    for engine, result in results.items():
        lines = (result["folder"] / f"{engine}0" / "events.jsonl").read_text().splitlines()
        worked = sum(e["seconds"] for e in map(json.loads, lines) if e.get("kind") == "worked")
        assert result["seconds"]["server"] >= worked - 0.01


def test_a_failed_evaluation_is_recorded_and_does_not_end_the_run(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(
        METHOD.replace("slow-server", "bad-predict").replace("SlowServer", "BadPredict").replace("0.5", "0")
        + "\n    def predict(self, client, x):\n        raise ValueError('cannot')\n"
    )
    result = api.run(
        "quickstart",
        method={"name": "bad-predict"},
        imports=[str(tmp_path / "broken.py")],
        rounds=1,
        clients=3,
        engine={"name": "pool", "workers": 2},
        out=tmp_path / "run",
    )
    assert {f["message"] for f in result["failures"]} == {"ValueError: cannot"}
    assert result["accuracy"] == {"personal": None, "global": None}
