"""`models.start`: clients start from trained weights, on every engine, and files that do not fit are one sentence."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.trained.trained_runs import run
from torch import nn

import polyfed
from polyfed.cli.app import main
from polyfed.config import parse
from polyfed.core.codec import encode
from polyfed.core.engine import Call, Task
from polyfed.engines.ray_actor import TaskStateStore
from polyfed.errors import InputError
from polyfed.federation import ray_nodes, simulation
from polyfed.runs.records import Result

UNTRAINED = {"epochs": 0}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    """A finished run, and the folder that its models were exported to."""
    folder = tmp_path_factory.mktemp("trained")
    result = run(folder / "run", "local", participation=1.0, train={"lr": 0.1})
    assert main(["export", str(folder / "run"), "-o", str(folder / "models")]) == 0
    return result, folder / "models"


def start(out: Path, folder: Any, method: str = "local", **settings: Any) -> Result:
    keys = {"models": {"start": folder}, "participation": 1.0, "rounds": 1, "train": UNTRAINED, **settings}
    return run(out, method, **keys)


def test_clients_start_from_exported_models(trained: tuple[Result, Path], tmp_path: Path) -> None:
    before, models = trained
    after = start(tmp_path / "serial", str(models))
    for kind in ("personal", "global"):  # without training, every client predicts like its trained model
        assert after["accuracy"][kind]["by_client"] == before["accuracy"][kind]["by_client"]
    pool = start(tmp_path / "pool", str(models), engine={"name": "pool", "workers": 2})
    assert (pool["state_hash"], pool["config_hash"]) == (after["state_hash"], after["config_hash"])


def test_some_clients_start_trained(trained: tuple[Result, Path], tmp_path: Path) -> None:
    before, models = trained
    after = start(tmp_path / "run", {"2": str(models / "2")})
    same = [
        now == then
        for now, then in zip(
            after["accuracy"]["global"]["by_client"], before["accuracy"]["global"]["by_client"], strict=True
        )
    ]
    assert same == [False, False, True, False]


def test_a_ray_node_without_the_files_starts_from_the_same_weights(
    trained: tuple[Result, Path], tmp_path: Path
) -> None:
    copy = shutil.copytree(trained[1], tmp_path / "models")
    config = parse(
        {"method": "local", "clients": 4, "data": {"limit": 200}, "models": {"start": str(copy)}, "train": UNTRAINED}
    )
    federation = simulation.build_federation(config)
    description = federation.describe_for_workers(tmp_path / "scratch")
    files = [(tmp_path / "scratch" / name).read_bytes() for name in ray_nodes.FILES]
    here = simulation.make_host(federation, tmp_path / "states")
    call, nothing = Call(1, 1, ("train",), ("train",)), encode({}).data
    ours = here.handle(call, Task("1", 0), nothing)
    shutil.rmtree(tmp_path / "scratch")
    shutil.rmtree(copy)
    theirs = ray_nodes.host_on_node(description, files, TaskStateStore()).handle(call, Task("1", 0), nothing)
    assert theirs.failure is None and theirs.digest == ours.digest


def test_other_content_is_another_run(trained: tuple[Result, Path], tmp_path: Path) -> None:
    copy = shutil.copytree(trained[1], tmp_path / "models")
    first = start(tmp_path / "run", str(copy))
    assert start(tmp_path / "run", str(copy)) == first  # finished
    weights = {name: 2 * tensor for name, tensor in _read(copy / "0" / "model.safetensors").items()}
    save_file(weights, copy / "0" / "model.safetensors")
    with pytest.raises(InputError, match=r"the initial weights of the run in .*0/model\.safetensors has changed"):
        start(tmp_path / "run", str(copy))
    other = start(tmp_path / "other", str(copy))
    assert other["config_hash"] != first["config_hash"] and other["state_hash"] != first["state_hash"]


def _read(file: Path) -> dict[str, torch.Tensor]:
    from polyfed.models.weight_files import read_tensors

    return read_tensors(file)


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(64, 8)
        self.out = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.out(torch.relu(self.body(x.flatten(1))))
        return logits


def test_the_state_dict_of_a_module_of_the_user(tmp_path: Path) -> None:
    torch.manual_seed(4)
    net = Own()
    save_file(net.state_dict(), tmp_path / "net.safetensors")
    polyfed.models.register("own", Own)
    from_file = start(
        tmp_path / "file",
        str(tmp_path / "net.safetensors"),
        models={"group": ["own"], "start": str(tmp_path / "net.safetensors")},
    )
    polyfed.models.register("own", lambda: net)
    given = start(tmp_path / "given", None, models={"group": ["own"]})
    assert from_file["state_hash"] == given["state_hash"]


@pytest.mark.parametrize(
    ("folder", "settings", "message"),
    [
        ("missing", {}, "models.start: there is no folder .*missing"),
        ("", {"clients": 5}, r"has no 4/model.safetensors for client 4; give a folder that polyfed export wrote"),
        ({"9": "0"}, {}, "models.start names client '9', which does not exist"),
        ({"1": "nine"}, {}, "there is no file .*nine, from which client 1 should start"),
        ({"1": "0"}, {}, r"models.start of client 1 \(.*0/model.safetensors\) has no tensor 'backbone"),
        ("", {"data": {"dataset": "wine"}, "models": {"group": ["tiny-table-mlp"]}}, "has no tensor 'backbone"),
        (
            "",
            {"method": "fedavg", "models": {"group": ["tiny-cnn"]}},
            "the clients of FedAvg start from the server's",
        ),
        ({"1": "0/model.json"}, {}, r"0/model.json is not a .safetensors file"),
    ],
)
def test_weights_that_do_not_fit_are_one_sentence(
    folder: Any, settings: dict[str, Any], message: str, trained: tuple[Result, Path], tmp_path: Path
) -> None:
    root = trained[1]
    place = {k: str(root / v) for k, v in folder.items()} if isinstance(folder, dict) else str(root / folder)
    keys = {**settings, "models": {**settings.get("models", {}), "start": place}}
    with pytest.raises(InputError, match=message) as refused:
        start(tmp_path / "run", place, **keys)
    assert "\n" not in str(refused.value) and not (tmp_path / "run").exists()


def test_a_head_for_other_classes_is_named(trained: tuple[Result, Path], tmp_path: Path) -> None:
    weights = _read(trained[1] / "0" / "model.safetensors")
    weights |= {name: tensor[:3].clone() for name, tensor in weights.items() if name.startswith("head.")}
    save_file(weights, tmp_path / "three.safetensors")
    with pytest.raises(
        InputError, match=r"three.safetensors\): 'head.weight' has shape \(3, \d+\), but the model needs"
    ):
        start(tmp_path / "run", {"0": str(tmp_path / "three.safetensors")})
