"""Data, models and methods that `polyfed.run` receives as objects: bit-identical on both engines, and resumable."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import polyfed
from polyfed.core import Method, Needs, Sends, step
from polyfed.data.dataset import from_arrays
from polyfed.errors import InputError
from polyfed.models.instances import capture
from polyfed.runs.records import Result

RNG = np.random.default_rng(5)
X = RNG.normal(size=(160, 6)).astype(np.float32)
Y = np.where(X[:, 0] > 0, "high", "low")
PIXELS = RNG.integers(0, 256, size=(160, 8, 8), dtype=np.uint8)
CHEAP: dict[str, Any] = {
    "clients": 4,
    "rounds": 2,
    "method": "local",
    "data": (X, Y),
}


class Net(nn.Module):
    def __init__(self, hidden: int = 5, activation: Any = torch.tanh) -> None:
        super().__init__()
        self.head = nn.Linear(hidden, 2)  # before the body, so that the order of definitions does not help
        self.body = nn.Linear(6, hidden)
        self.activation = activation
        self.register_buffer("scale", torch.full((1,), 3.0), persistent=False)
        self.calls: list[int] = []

    scale: Tensor

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.activation(self.body(x * self.scale)))
        return out


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.GRU(2, 7, batch_first=True)
        self.out = nn.Linear(7, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.cells(x.reshape(len(x), 3, 2))[1][0])
        return out


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(2, 2, 4, dropout=0.0, activation="gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 1)
        self.out = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.layers(x.reshape(len(x), 3, 2)).mean(1))
        return out


def small_net(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], 4), nn.ReLU(), nn.Linear(4, classes))


@dataclass(frozen=True)
class Repeated(Method):
    """Clients train several times."""

    passes: int = 1
    needs = Needs()
    sends = Sends()

    def round(self, server: Any, cohort: Any) -> None:
        cohort.call(self.train)

    @step()
    def train(self, client: Any, msg: Any) -> None:
        for _ in range(self.passes):
            client.fit()


def run(folder: Path, engine: str = "serial", **settings: Any) -> Result:
    given = {**CHEAP, **settings}
    return polyfed.run(engine={"name": engine, "workers": 2 if engine == "pool" else "auto"}, out=folder, **given)


def on_both_engines(folder: Path, **settings: Any) -> Result:
    serial, pool = (run(folder / engine, engine, **settings) for engine in ("serial", "pool"))
    assert serial["failures"] == pool["failures"] == []
    for key in ("state_hash", "config_hash", "accuracy"):
        assert serial[key] == pool[key]
    return serial


def networks() -> list[nn.Module]:
    torch.manual_seed(1)
    normed = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    return [Net(5), Net(7, F.relu), Recurrent(), Attention(), normed]


def test_modules_keep_their_weights_on_both_engines(tmp_path: Path) -> None:
    models = networks()
    result = on_both_engines(tmp_path, models=models, clients=6)
    models[0].body.bias.data += 1.0  # type: ignore[union-attr, operator]
    other = run(tmp_path / "other", models=models, clients=6)
    assert other["state_hash"] != result["state_hash"]
    assert other["config_hash"] != result["config_hash"]


def test_a_copy_of_a_module_equals_the_module() -> None:
    x = torch.randn(9, 6)
    for module in networks():
        factory = capture(module, "the model")
        copy = factory()
        assert type(copy) is type(module)
        assert all(torch.equal(a, b) for a, b in zip(copy.buffers(), module.buffers(), strict=True))
        assert torch.equal(copy.eval()(x), module.eval()(x))
        next(copy.parameters()).data.zero_()
        assert torch.equal(factory().eval()(x), module(x))  # copies share nothing
        with torch.device("meta"):
            assert all(p.is_meta for p in factory().parameters())


def test_tied_and_frozen_weights_stay_tied_and_frozen() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
            self.second.weight = self.first.weight
            self.first.bias.requires_grad_(False)

    copy: Any = capture(Tied(), "the model")()
    assert copy.first.weight is copy.second.weight
    assert not copy.first.bias.requires_grad and copy.second.bias.requires_grad


def test_classes_functions_and_names_together(tmp_path: Path) -> None:
    result = on_both_engines(tmp_path, models=[Net, small_net, "tiny-table-mlp", Net(4)])
    assert [client.model for client in result.clients] == ["Net", "small_net", "tiny-table-mlp", "Net-2"]


def test_a_method_object_without_a_registered_name(tmp_path: Path) -> None:
    once = on_both_engines(tmp_path, models=[Net()], method=Repeated(passes=1))
    twice = on_both_engines(tmp_path / "twice", models=[Net()], method=Repeated(passes=2))
    assert once.method == "repeated" and once["state_hash"] != twice["state_hash"]


def test_data_in_every_form_is_the_same_data(tmp_path: Path) -> None:
    labels = (X[:, 0] > 0).astype(int)
    tensors = TensorDataset(torch.from_numpy(X), torch.from_numpy(labels))
    forms: list[Any] = [
        (X, labels),
        (torch.from_numpy(X), torch.from_numpy(labels)),
        tensors,
        from_arrays("arrays", X, labels),
        {"train": (X, labels)},
    ]
    results = [run(tmp_path / str(number), data=form) for number, form in enumerate(forms)]
    assert {result["config_hash"] for result in results} == {results[0]["config_hash"]}
    assert {result["state_hash"] for result in results} == {results[0]["state_hash"]}
    changed = X.copy()
    changed[3, 2] += 1
    assert run(tmp_path / "changed", data=(changed, labels))["config_hash"] != results[0]["config_hash"]


def test_a_common_test_set_is_evaluated(tmp_path: Path) -> None:
    four = run(tmp_path / "four", data=(X[:120], Y[:120], X[120:], Y[120:]))
    pairs = run(tmp_path / "pairs", data=((X[:120], Y[:120]), (X[120:], Y[120:])))
    named = run(tmp_path / "named", data={"train": (X[:120], Y[:120]), "test": (X[120:], Y[120:])})
    assert four["accuracy"]["global"] is not None
    assert four["state_hash"] == pairs["state_hash"] == named["state_hash"]


def test_one_dataset_per_client(tmp_path: Path) -> None:
    parts = [(X[:60], Y[:60]), (X[60:80], Y[60:80]), (X[80:], Y[80:])]
    settings = {**CHEAP, "data": parts}
    del settings["clients"]
    result = polyfed.run(engine={"name": "serial"}, out=tmp_path / "list", **settings)
    assert [client.samples for client in result.clients] == [45, 15, 60]  # a quarter of each is held out
    named = {"clients": {"north": parts[0], "south": parts[1]}, "test": parts[2]}
    result = polyfed.run(engine={"name": "serial"}, out=tmp_path / "named", **{**settings, "data": named})
    assert [client.name for client in result.clients] == ["north", "south"]
    assert result["accuracy"]["global"] is not None


def test_clients_with_their_own_test_sets(tmp_path: Path) -> None:
    parts = [(X[:50], Y[:50], X[50:60], Y[50:60]), (X[60:100], Y[60:100], X[100:104], Y[100:104])]
    result = on_both_engines(tmp_path, data=parts, clients=2)
    assert [(client.samples, client.test_samples) for client in result.clients] == [(50, 10), (40, 4)]
    partition = np.load(tmp_path / "serial" / "partition.npz")
    assert partition["test_0"].tolist() == list(range(90, 100))  # after the training samples of both clients


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([X, Y], "the data of client 0 is a ndarray; expected"),
        ((X, Y, X), "data is a tuple of 3; expected"),
        ([], "data is an empty list"),
        ([(X, Y), (X[:, :4], Y)], "samples of client 0 have shape 6, those of client 1 4"),
        ([(X, Y), (X, Y, X, Y)], "client 0 has no test samples, but others have"),
        ({"train": (X, Y), "clients": [(X, Y)]}, "both 'train' and 'clients'"),
        ([(X, Y)], "clients is 4, but data has 1 datasets"),
        ((X, Y[:7]), "found 160 samples but 7 labels"),
        ([(X, Y), (X, X[:, 0] > 0), (X, Y), (X, Y)], "some labels are text and others are numbers"),
        ([(PIXELS, Y), (PIXELS / 255, Y)], "some clients have uint8 pictures and others do not"),
        ((from_arrays("a", X, Y), from_arrays("b", X, np.char.upper(Y))), "have different class names"),
        (([*X.tolist()[:2], [1.0]], Y[:3]), "the samples do not form an array"),
    ],
)
def test_wrong_data_is_one_sentence(data: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message.replace("(", r"\(").replace(")", r"\)")):
        run(tmp_path / "run", data=data)
    assert not (tmp_path / "run").exists()


class Odd(nn.Module):
    """A module with an attribute that cannot be written as data."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = np.ones(3)
        self.out = nn.Linear(6, 2)


class Softmaxed(nn.Module):
    """A module whose last operation is not its head."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(x).softmax(1)
        return out


class Sized(nn.Module):
    def __init__(self, units: int) -> None:
        super().__init__()
        self.out = nn.Linear(6, units)


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ([Odd()], "its attribute Odd.lock is a ndarray"),
        ([nn.Linear(6, 5)], "Linear has no Linear layer; end it with a Linear that has 2 outputs"),
        ([Sized(5)], "its last Linear, 'out', has 5"),
        ([Softmaxed()], "Softmaxed does more after its head 'out'"),
        ([Sized], "its factory needs 'units'"),
        ([3], "models holds a int; expected names of models, torch modules"),
        ([], "models is empty"),
        ([lambda: 3], "its factory returned a int; expected a torch.nn.Module"),
    ],
)
def test_wrong_models_are_one_sentence(models: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        run(tmp_path / "run", models=models)
    assert not (tmp_path / "run").exists()


def stopped_copy(folder: Path) -> Path:
    """Return a copy of a run as it was before its first round."""
    copy = folder.with_name(f"{folder.name}-stopped")
    shutil.copytree(folder, copy)
    (copy / "result.json").unlink()
    shutil.rmtree(copy / "checkpoint")
    return copy


def test_a_run_with_modules_is_resumed_from_its_folder(tmp_path: Path) -> None:
    result = run(tmp_path / "run", models=networks())
    polyfed.models.registry._registered.clear()
    stopped = stopped_copy(tmp_path / "run")
    with pytest.raises(InputError, match="the models are not those that"):
        polyfed.resume(stopped, models=[Net(3)])
    assert polyfed.resume(stopped)["state_hash"] == result["state_hash"]


def test_data_that_left_the_cache_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYFED_CACHE", str(tmp_path / "cache"))
    result = run(tmp_path / "run")
    stopped = stopped_copy(tmp_path / "run")
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(InputError, match=r"give it again: polyfed\.resume\('.*', data=\.\.\.\)"):
        polyfed.resume(stopped)
    with pytest.raises(InputError, match="is not the data that"):
        polyfed.resume(stopped, data=(X + 1, Y))
    assert polyfed.resume(stopped, data=(X, Y))["state_hash"] == result["state_hash"]


def test_a_local_class_runs_in_one_process_and_is_asked_for(tmp_path: Path) -> None:
    class Local(Net):
        pass

    torch.manual_seed(2)
    model = Local()
    with pytest.raises(InputError, match="Local"):
        run(tmp_path / "pool", "pool", models=[model])
    assert not (tmp_path / "pool").exists()
    result = run(tmp_path / "run", models=[model])
    stopped = stopped_copy(tmp_path / "run")
    polyfed.models.registry._registered.clear()
    with pytest.raises(InputError, match=r"give the models again: polyfed\.resume\('.*', models=\[\.\.\.\]\)"):
        polyfed.resume(stopped)
    assert polyfed.resume(stopped, models=[model])["state_hash"] == result["state_hash"]
