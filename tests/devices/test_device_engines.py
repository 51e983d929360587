"""Devices and engines: several devices, killed workers, too little memory, data that does not fit, precision."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import simulated_device
from tests.device_runs import device_run, federation_run
from torch import nn

from polyfed import api, catalogue, devices
from polyfed.config import parse
from polyfed.config.sections import EngineConfig
from polyfed.core.place import Place
from polyfed.errors import InputError
from polyfed.federation.placement import pool_devices, ray_device
from polyfed.testing.toy_federation import ToyFederation

WHERE = '''
import os
import signal
from dataclasses import dataclass
from polyfed.core import Method, Needs, ScalarField, Sends, register, step

@register("where")
@dataclass(frozen=True)
class Where(Method):
    """Local training that records devices. In round 2 one client kills its worker, once."""
    mark: str = ""
    needs = Needs()
    sends = Sends(up="the device")

    def round(self, server, cohort):
        replies = cohort.call(self.train)
        server.record("where", devices=[reply.number("device") for reply in replies.values()])

    @step(up={"device": ScalarField()})
    def train(self, client, msg):
        if client.round == 2 and client.name == "1" and not os.path.exists(self.mark):
            open(self.mark, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        client.fit()
        return {"device": -1 if client.device.index is None else client.device.index}
'''


def run_where(folder: Path, out: str, **engine: Any) -> tuple[str, list[list[float]]]:
    """Run the method. Return the state hash and the devices of all clients in every round."""
    (folder / "where.py").write_text(WHERE)
    result = api.run(
        "quickstart",
        method={"name": "where", "mark": str(folder / "killed")},
        imports=[str(folder / "where.py")],
        rounds=2,
        clients=4,
        engine=engine,
        out=folder / out,
    )
    events = [json.loads(line) for line in (folder / out / "events.jsonl").read_text().splitlines()]
    return str(result["state_hash"]), [event["devices"] for event in events if event.get("kind") == "where"]


def test_clients_on_two_devices_and_a_killed_worker_give_the_bits_of_the_cpu(tmp_path: Path) -> None:
    with simulated_device.simulated():
        on_devices, used = run_where(tmp_path, "two", name="pool", device="sim", workers=1)
    assert (tmp_path / "killed").exists()
    assert sorted(used[0]) == [0, 0, 1, 1]
    assert set(used[1]) <= {0, 1}
    on_cpu, used = run_where(tmp_path, "cpu", name="serial", device="cpu")
    assert used == [[-1] * 4] * 2
    assert on_devices == on_cpu


@pytest.fixture
def toy() -> Iterator[ToyFederation]:
    with ToyFederation(catalogue.load("local"), {}) as made:
        made.models = ["tiny-cnn"]
        yield made


@pytest.fixture
def measured() -> Iterator[simulated_device.Counts]:
    """Measure the memory of the simulated device. Tests may set a limit."""
    counts = simulated_device.COUNTS
    counts.used, counts.limit = 0, 1 << 40
    yield counts
    counts.limit = None


def trained(batch: int, **more: Any) -> dict[str, Any]:
    return {"train": {"batch_size": batch, "lr": 0.05, **more}, "evaluate": False}


def test_a_client_that_does_not_fit_is_repeated_alone(toy: ToyFederation, measured: simulated_device.Counts) -> None:
    together = device_run(toy, **trained(8))
    both = measured.peak
    measured.limit = both - 1  # with one client on the device there is more room
    alone = device_run(toy, **trained(8))
    assert measured.peak < both
    assert alone.outcome.hash == together.outcome.hash
    assert alone.outcome.round_stats[0].notes == ()


def test_gradients_are_accumulated_if_a_batch_does_not_fit(
    toy: ToyFederation, measured: simulated_device.Counts
) -> None:
    one_client: dict[str, Any] = {"class_counts": ((8, 8, 0, 0),)}
    device_run(toy, **trained(16), **one_client)
    whole = measured.peak
    halves = device_run(toy, **trained(16, micro_batch=8), **one_client)
    measured.limit = (measured.peak + whole) // 2
    run = device_run(toy, **trained(16), **one_client)
    assert "gradients of 8 samples at a time were added up" in run.outcome.round_stats[0].notes[0]
    assert run.outcome.hash == halves.outcome.hash


def test_a_model_that_does_not_fit_fails_with_one_sentence(
    toy: ToyFederation, measured: simulated_device.Counts
) -> None:
    measured.limit = 150_000
    with pytest.raises(Exception, match=r"tiny-cnn does not fit into the memory of sim:0 with a batch of 8 samples"):
        device_run(toy, **trained(8))


def test_data_that_does_not_fit_stays_on_the_cpu(toy: ToyFederation) -> None:
    resident, streamed = device_run(toy), device_run(toy, memory=1)
    assert streamed.outcome.hash == resident.outcome.hash
    assert {synchronisations for synchronisations, _ in streamed.steps.between} == {0}


def test_accumulated_gradients_are_those_of_the_batch(toy: ToyFederation) -> None:
    whole, parts = (federation_run(toy, Place(), **trained(8, micro_batch=m)) for m in (None, 3))
    assert whole.hash != parts.hash  # rounding
    for name, weights in whole.client("0").weights("model").items():
        assert torch.allclose(weights, parts.client("0").weights("model")[name], atol=1e-6)


def test_bf16_trains_on_the_cpu(toy: ToyFederation) -> None:
    full, low = (federation_run(toy, Place(), **trained(8, precision=p)) for p in ("fp32", "bf16"))
    assert full.hash != low.hash
    for name, weights in full.client("0").weights("model").items():
        other = low.client("0").weights("model")[name]
        assert other.dtype == weights.dtype
        assert torch.allclose(weights, other, atol=0.02)


def test_models_are_compiled_on_request(toy: ToyFederation, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[nn.Module] = []
    monkeypatch.setattr(
        nn.Module, "compile", lambda part: compiled.append(part)
    )  # torch's compiler takes seconds to import
    model = toy.federation(toy.config(train={"compile": True})).make_client("0").model
    assert compiled == [model.backbone, model.head]
    toy.federation(toy.config()).make_client("0")
    assert len(compiled) == 2


# the choice of devices


def test_workers_take_devices_in_turn() -> None:
    chosen = pool_devices(EngineConfig(device="sim", workers=2), 100, lambda: 1 << 20)
    assert [choice.index for choice in chosen] == [0, 1, 0, 1]
    assert {choice.workers for choice in chosen} == {2}
    assert len(pool_devices(EngineConfig(device="sim", workers=2), 3, lambda: 1 << 20)) == 3
    large = pool_devices(EngineConfig(device="sim"), 100, lambda: 1 << 40)
    assert [choice.index for choice in large] == [0, 1]  # at least one worker per device


def test_a_cuda_worker_sees_only_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = devices.Cuda()
    monkeypatch.delenv(devices.VISIBLE, raising=False)
    assert kind.environment(1) == {devices.VISIBLE: "1"}
    monkeypatch.setenv(devices.VISIBLE, "3, GPU-5b")
    assert kind.environment(1) == {devices.VISIBLE: "GPU-5b"}
    assert kind.index_in_worker(1) == 0


class NoDevice(simulated_device.SimulatedKind):
    name = "absent"

    def count(self) -> int:
        return 0


def test_wrong_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"engine.device.*auto, cpu, cuda.*mps"):
        parse({"engine": {"device": "gpu"}})
    monkeypatch.setitem(devices._KINDS, "absent", NoDevice())
    with pytest.raises(InputError, match=r"engine.device is absent, but this machine has no such device"):
        devices.kind_of("absent")
    with pytest.raises(InputError, match=r"engine.gpus_per_worker is 0"):
        ray_device(EngineConfig(name="ray", device="cuda"))
    assert ray_device(EngineConfig(name="ray", gpus_per_worker=0.5)) == "cuda"
    assert ray_device(EngineConfig(name="ray")) == "cpu"


# whole experiments


PROBES = {"cka": True, "features": True, "histograms": True, "metrics": ["accuracy", "auroc", "confusion"]}
PRIVACY = {"prototypes": {"clip": 1.0, "noise": 1.0, "min_count": 2}}


@pytest.mark.parametrize(
    ("method", "models", "settings"),
    [
        ("fedavg", ["tiny-resnet18"], {"server_filter": "inco", "evaluate": PROBES}),
        ("fedproto", ["tiny-cnn", "tiny-mlp"], {"privacy": PRIVACY}),
    ],
)
def test_filters_probes_and_privacy_on_a_device(method: str, models: list[str], settings: dict[str, Any]) -> None:
    with ToyFederation(catalogue.load(method), {}) as made, simulated_device.simulated():
        made.models = models
        common = made.settings(((4, 4, 0, 0), (0, 4, 4, 0)), rounds=1) | settings
        results = [made.experiment(common | {"engine": {"name": "serial", "device": d}}) for d in ("cpu", "sim")]
    assert results[0]["state_hash"] == results[1]["state_hash"]
    assert results[0]["accuracy"] == results[1]["accuracy"]
    assert results[1]["versions"]["device"] == "sim"
