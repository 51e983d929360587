"""Every method on a simulated device: the bits of the CPU, and no synchronisation or transfer in a training step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from tests.device_runs import METHODS, WORK, device_run, federation_run, training
from tests.tiers import always_if
from torch import Tensor

from polyfed import catalogue
from polyfed.core import Client, Cohort, Method, Needs, Payload, Sends, Server, step
from polyfed.core.method import register
from polyfed.core.place import Place
from polyfed.testing.toy_federation import ToyFederation

# Forward-mode differentiation of BatchNorm differs in the last bit between the simulated device and the CPU, with
# equal inputs. So bits are compared with the other gradient of FedL2G, and counts with its default.
OTHER_GRADIENT = {"fedl2g": {"gradient": "finite_diff"}}


# One method of each kind of computation; all with --all-methods.
REPRESENTATIVES = {
    "fedavg": "averages models",
    "fedproto": "class tables",
    "fedl2g": "gradients of gradients",
    "heterofl": "slices of a model",
    "dffke": "images of a decoder",
    "fedvtc": "a generative loss with noise",
    "fedlatent": "synthetic features",
    "fedgen": "a generator that the server trains",
    "scaffold": "state that steps share",
}
EVERY_METHOD = [pytest.param(name, marks=always_if(name in REPRESENTATIVES)) for name in METHODS]


def test_representatives_exist() -> None:
    assert set(REPRESENTATIVES) <= set(METHODS)


@pytest.mark.parametrize("name", EVERY_METHOD)
def test_a_method_on_a_device_gives_the_bits_of_the_cpu(name: str) -> None:
    with ToyFederation(catalogue.load(name), {**WORK.get(name, {}), **OTHER_GRADIENT.get(name, {})}) as toy:
        on_cpu = federation_run(toy, Place())
        on_device = device_run(toy)
    assert on_device.outcome.hash == on_cpu.hash
    assert on_device.outcome.accuracy == on_cpu.accuracy
    assert len(on_device.steps.between) >= 4  # two clients and two rounds, with two batches or more
    assert on_device.steps.between == [(0, 0)] * len(on_device.steps.between)


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("fedavg", "krum"),
        ("fedproto", "geometric-median"),
        ("heterofl", "median"),
        ("fedavg", {"name": "mean", "secure": True}),
    ],
)
def test_aggregation_on_a_device_gives_the_bits_of_the_cpu(name: str, rule: Any) -> None:
    settings: dict[str, Any] = {"class_counts": [(4, 4, 0, 0)] * 3, "evaluate": False, "aggregation": rule}
    with ToyFederation(catalogue.load(name), {}) as toy:
        on_cpu = federation_run(toy, Place(), **settings)
        assert device_run(toy, **settings).outcome.hash == on_cpu.hash
        assert federation_run(toy, Place(), **settings | {"aggregation": "mean"}).hash != on_cpu.hash


# Methods whose counts depend on the size of a batch, and why.
VARYING = {"fedl2g": "a reply with the rows of one class needs no check of their order; small batches have one class"}


@pytest.mark.parametrize("name", EVERY_METHOD)
def test_synchronisations_and_transfers_of_a_round_do_not_grow_with_its_steps(name: str) -> None:
    with ToyFederation(catalogue.load(name), WORK.get(name, {})) as toy:
        few, more = (device_run(toy, train=training(batch), rounds=1, evaluate=False) for batch in (8, 4))
    assert more.steps.steps > few.steps.steps
    if name in VARYING:
        assert more.synchronisations <= few.synchronisations and more.transfers <= few.transfers
    else:
        assert (more.synchronisations, more.transfers) == (few.synchronisations, few.transfers)


@register("planted")
@dataclass(frozen=True)
class Planted(Method):
    """Local training with a fault in every step."""

    fault: str = "none"
    needs: ClassVar[Needs] = Needs()
    sends: ClassVar[Sends] = Sends()

    def round(self, server: Server, cohort: Cohort) -> None:
        cohort.call(self.train)

    @step()
    def train(self, client: Client, msg: Payload) -> None:
        def loss(x: Tensor, y: Tensor) -> Tensor:
            value = client.cross_entropy(x, y)
            if self.fault == "item":
                return value * (1.0 if value.item() >= 0 else 2.0)
            if self.fault == "mask":
                return F.cross_entropy(client.model(x)[y >= 0], y)
            if self.fault == "copy":
                return value + (x.new_zeros(3) + torch.ones(3).to(x.device, non_blocking=True)).sum()
            return value + (x.new_zeros(3) + torch.ones(3)).sum() if self.fault == "cpu tensor" else value

        client.fit(loss)


@pytest.mark.parametrize(("fault", "between"), [("item", (1, 0)), ("mask", (2, 0)), ("copy", (0, 1))])
def test_a_planted_fault_is_counted_in_every_step(fault: str, between: tuple[int, int]) -> None:
    with ToyFederation(Planted, {"fault": fault}) as toy:
        log = device_run(toy).steps
    assert log.between == [between] * 12


def test_a_planted_fault_makes_the_counts_of_a_round_grow() -> None:
    with ToyFederation(Planted, {"fault": "item"}) as toy:
        few, more = (device_run(toy, train=training(batch), rounds=1, evaluate=False) for batch in (8, 4))
    assert more.synchronisations - few.synchronisations == more.steps.steps - few.steps.steps == 4


def test_a_planted_cpu_tensor_fails() -> None:
    with (
        ToyFederation(Planted, {"fault": "cpu tensor"}) as toy,
        pytest.raises(Exception, match=r"add: tensors on \['cpu', 'sim:0'\]"),
    ):
        device_run(toy)
