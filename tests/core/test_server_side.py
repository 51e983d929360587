"""The server side: one call at a time, state layouts after a resume, and accuracy means."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from polyfed import api
from polyfed.core.engine import TrainingStats
from polyfed.core.round_stats import RoundStats
from polyfed.errors import RunError
from polyfed.runs.records import RoundRecord

METHODS = '''
from dataclasses import dataclass
import torch
from polyfed.core import Method, Needs, Sends, register, step
from polyfed.core.client import weights_of

class Trains(Method):
    needs = Needs()
    sends = Sends()

    @step()
    def train(self, client, msg):
        client.fit()

@register("asks-inside-a-stream")
@dataclass(frozen=True)
class Inside(Trains):
    """Makes a call while it reads replies."""
    def round(self, server, cohort):
        for _ in cohort.stream(self.train):
            cohort.call(self.train)

@register("keeps-layouts")
@dataclass(frozen=True)
class Layouts(Trains):
    """Adds convolution weights, where the memory order changes the last bit."""
    def init(self, server):
        server.state["w"] = weights_of(server.build(server.roster[0].spec))
        server.state["sums"] = torch.zeros(0, dtype=torch.float32)

    def round(self, server, cohort):
        cohort.call(self.train)
        weights = server.memory.weights("w")
        total = torch.stack([t.float().norm() + t.float().sum() for t in weights.values()]).sum()
        server.state["sums"] = torch.cat([server.memory.tensor("sums"), total[None]])
        server.state["w"] = {n: t * 1.0001 if t.is_floating_point() else t for n, t in weights.items()}
'''


@pytest.fixture
def imports(tmp_path: Path) -> list[str]:
    (tmp_path / "methods_here.py").write_text(METHODS)
    return [str(tmp_path / "methods_here.py")]


def run(method: str, imports: list[str], out: Path, **more: Any) -> dict[str, Any]:
    settings = {"rounds": 3, "clients": 3, "engine": {"name": "serial"}, "checkpoint": {"seconds": 0}, **more}
    return api.run("quickstart", method={"name": method}, imports=imports, out=out, **settings)


@pytest.mark.parametrize("engine", ["serial", "pool"])
def test_a_call_inside_a_stream_is_refused_and_does_not_hang(engine: str, imports: list[str], tmp_path: Path) -> None:
    with pytest.raises(RunError, match="while the replies of another were still being read"):
        run("asks-inside-a-stream", imports, tmp_path / "run", engine={"name": engine})


class Stop:
    def started(self, config: Any, folder: Path, done: int) -> None: ...

    def note(self, sentence: str) -> None: ...

    def round_done(self, record: RoundRecord) -> None:
        if record.round == 3:
            raise ZeroDivisionError


def test_server_state_has_the_same_layout_after_a_resume(imports: list[str], tmp_path: Path) -> None:
    models = {"models": {"group": ["tiny-resnet"]}, "rounds": 4}
    straight = run("keeps-layouts", imports, tmp_path / "straight", **models)
    with pytest.raises(ZeroDivisionError):
        run("keeps-layouts", imports, tmp_path / "stopped", **models, observers=[Stop()])
    assert api.resume(tmp_path / "stopped")["state_hash"] == straight["state_hash"]


def test_a_diverged_loss_is_left_out_of_the_mean() -> None:
    stats = RoundStats(trained=[TrainingStats(2.0, 10, 1), TrainingStats(math.nan, 90, 9)])
    assert stats.task_loss() == 2.0
    assert RoundStats(trained=[TrainingStats(math.inf, 5, 1)]).task_loss() is None


def test_no_accuracy_without_test_samples(tmp_path: Path) -> None:
    result = api.run(
        "quickstart",
        rounds=1,
        clients=3,
        data={"test_fraction": 0.0},
        engine={"name": "serial"},
        out=tmp_path / "run",
    )
    assert result["accuracy"]["personal"] is None and result["accuracy"]["global"]["final"] >= 0


def test_a_run_does_not_resume_with_another_partition(tmp_path: Path) -> None:
    import numpy as np

    def split(shift: int) -> None:
        train: dict[str, Any] = {f"train_{k}": np.arange(40 * k + shift, 40 * k + 30) for k in range(3)}
        test: dict[str, Any] = {f"test_{k}": np.arange(40 * k + 30, 40 * k + 40) for k in range(3)}
        np.savez(tmp_path / "split.npz", **train, **test)

    settings: dict[str, Any] = {
        "rounds": 4,
        "clients": 3,
        "data": {"partition": {"scheme": "file", "path": str(tmp_path / "split.npz")}},
        "engine": {"name": "serial"},
        "checkpoint": {"seconds": 0},
        "out": tmp_path / "run",
    }
    split(0)
    with pytest.raises(ZeroDivisionError):
        api.run("quickstart", **settings, observers=[Stop()])
    split(1)
    with pytest.raises(RunError, match="has changed since this run started"):
        api.resume(tmp_path / "run")
    split(0)
    assert api.resume(tmp_path / "run")["rounds"] == 4


def test_the_written_config_is_complete_and_is_a_config(tmp_path: Path) -> None:
    from polyfed.config import parse
    from polyfed.config.loading import read_source
    from polyfed.runs.folder import RunFolder

    short = parse({"method": "fedproto", "rounds": 1})
    spelt = parse({"method": {"name": "fedproto", "guidance": 1}, "rounds": 1})
    assert short.hash() == spelt.hash() and short.method["guidance"] == 1.0
    api.run("quickstart", rounds=1, clients=3, engine={"name": "serial"}, out=tmp_path / "run")
    written = RunFolder(tmp_path / "run").config()
    assert written["method"]["min_class_count"] == 1 and written["data"]["partition"]["min_size"] == 10
    assert parse(read_source(tmp_path / "run" / "config.yaml")).clients == 3


def test_numbers_as_people_write_them() -> None:
    from polyfed.config import parse
    from polyfed.config.loading import apply_overrides

    assert parse(apply_overrides({}, ["train.lr=1e-3"])).train.lr == 0.001


def test_equal_results_for_torch_of_any_layout() -> None:
    from polyfed.core.rounds import normalise_state

    weights = torch.rand(4, 3, 5, 5).to(memory_format=torch.channels_last)
    back = normalise_state({"w": weights})["w"]
    assert isinstance(back, torch.Tensor) and back.is_contiguous() and torch.equal(back, weights)
