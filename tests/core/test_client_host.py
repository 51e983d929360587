"""The host: client state between steps, the mode of models, and evaluation requests."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from polyfed import catalogue
from polyfed.core import (
    Client,
    Cohort,
    Method,
    Payload,
    Reply,
    ScalarField,
    Sends,
    Server,
    WeightsField,
    register,
    step,
)
from polyfed.core.client import weights_of
from polyfed.core.client_host import Host
from polyfed.core.codec import encode
from polyfed.core.engine import Call, Task
from polyfed.core.payload import Value
from polyfed.runs.state_store import FolderStore
from polyfed.testing.toy_federation import ToyFederation


@register("toy-hoard")
@dataclass(frozen=True)
class Hoard(Method):
    """Keeps references to tensors in its state and changes them later."""

    sends = Sends(up="nothing", down="all weights")
    needs = replace(Method.needs, same_architecture=True)

    def init(self, server: Server) -> None:
        server.state["model"] = weights_of(server.build(server.roster[0].spec))

    def round(self, server: Server, cohort: Cohort) -> None:
        cohort.call(self.keep, shared={"model": server.state["model"]})
        cohort.call(self.alter)

    @step(down={"model": WeightsField()})
    def keep(self, client: Client, msg: Payload) -> None:
        client.state["received"] = msg["model"]
        client.state["live"] = dict(client.model.state_dict())
        client.state["graph"] = client.model(torch.ones(2, 1, 8, 8)).sum()

    @step()
    def alter(self, client: Client, msg: Payload) -> None:
        client.fit()
        for tensor in client.memory.weights("received").values():
            tensor.add_(int(client.name))


def test_client_state_is_a_copy() -> None:
    with ToyFederation(Hoard, {}) as toy:
        roomy, tight = toy.run().checked(), toy.run(memory=1).checked()
    assert roomy.hash == tight.hash


@register("toy-mood")
@dataclass(frozen=True)
class Mood(Method):
    """Uses its model without setting its mode."""

    sends = Sends(up="numbers", down="nothing")
    needs = replace(Method.needs, same_architecture=True)

    def round(self, server: Server, cohort: Cohort) -> None:
        cohort.call(self.look)

    @step(up={"training": ScalarField("flag")})
    def look(self, client: Client, msg: Payload) -> Reply:
        training = client.model.training
        client.model(torch.ones(2, 1, 8, 8))
        return {"training": training}


def test_a_step_always_starts_in_training_mode() -> None:
    with ToyFederation(Mood, {}) as toy:
        assert len({toy.run().hash, toy.run(evaluate=True).hash, toy.run(memory=1, evaluate=True).hash}) == 1


def _host(toy: ToyFederation) -> Host:
    return Host(toy.federation(toy.config()), FolderStore(toy.new_folder()), 1 << 30, 1 << 30)


def test_a_reused_call_number_gets_the_new_message() -> None:
    """A coordinator that restarts from a checkpoint reuses call numbers."""
    call, task = Call(5, 1, ("keep",), ("keep",)), Task("0", 0)
    with ToyFederation(Hoard, {}) as toy:
        federation = toy.federation(toy.config())
        weights = weights_of(federation.common_model(federation.specs[0].text))
        messages = [encode({"model": {n: w + k for n, w in weights.items()}}).data for k in (0, 1)]
        host = _host(toy)
        one, other = (host.handle(call, task, message) for message in messages)
        alone = _host(toy).handle(call, task, messages[1])
    assert one.failure is None and one.digest != other.digest == alone.digest


NOTHING = encode({}).data


@pytest.mark.parametrize("measures", [("personal", "features"), ("features", "personal"), ("secrets",)])
def test_unknown_measures_and_combined_probes_are_refused(measures: tuple[str, ...]) -> None:
    with ToyFederation(Mood, {}) as toy:
        host, task = _host(toy), Task("0", 0)
        refused = host.handle(Call(-1, 1, measures=measures), task, NOTHING).failure
        assert refused is not None and refused.kind == "refused"
        unknown = next(name for name in measures if name != "personal")
        assert refused.message.startswith(f"unknown measure '{unknown}'")
        assert host.handle(Call(-2, 1, measures=("features",)), task, NOTHING).failure is None
        assert host.handle(Call(-3, 1, measures=("personal", "global")), task, NOTHING).failure is None


def test_messages_that_a_step_does_not_declare_are_refused() -> None:
    call, task = Call(1, 1, ("keep",), ("keep",)), Task("0", 0)
    with ToyFederation(Hoard, {}) as toy:
        host = _host(toy)
        wrong: list[dict[str, Value]] = [{}, {"model": {"w": torch.ones(2)}}, {"model": {}, "other": 1.0}]
        for message in wrong:
            refused = host.handle(call, task, encode(message).data).failure
            assert refused is not None and refused.kind == "refused"


def test_clients_are_dropped_from_memory_in_the_order_of_their_calls(tmp_path: Path) -> None:
    with ToyFederation(catalogue.load("local"), {}) as toy:
        federation = toy.federation(toy.config())
        call, nothing, names = Call(1, 1, ("train",), ("train",)), encode({}).data, federation.names

        def held(budget: int) -> list[bool]:
            host = Host(federation, FolderStore(tmp_path / str(budget)), budget, 1 << 30)
            for name in names:
                assert host.handle(call, Task(name, 0), nothing).failure is None
            return [host.holds(name, 1) for name in names]

        assert held(1 << 40) == [True] * len(names)
        states, clients = FolderStore(tmp_path / str(1 << 40)), map(federation.make_client, names)
        sizes = [
            len(states.read(client.name, 1)) + client.train.inputs.nbytes + client.test.inputs.nbytes
            for client in clients
        ]
        for kept in range(1, len(names) + 1):
            assert held(sum(sizes[-kept:])) == [False] * (len(names) - kept) + [True] * kept
            assert held(sum(sizes[-kept:]) - 1).count(True) == max(1, kept - 1)


@register("toy-adopter")
@dataclass(frozen=True)
class Adopter(Method):
    """Changes models for an evaluation in the ways that PyTorch allows."""

    how: str = "in place"

    def round(self, server: Server, cohort: Cohort) -> None:
        cohort.call(self.train)

    @step()
    def train(self, client: Client, msg: Payload) -> None:
        client.fit()

    def adopt(self, client: Client, msg: Payload) -> None:
        head = client.model.head
        assert isinstance(head, torch.nn.Linear)
        client.state["adopted"] = 1.0
        if self.how == "in place":
            with torch.no_grad():
                head.bias.add_(1)
        elif self.how == "data":
            head.bias.data.fill_(7)
        elif self.how == "statistics":
            client.model.train()
            client.model(torch.ones(2, 1, 8, 8))
        elif self.how == "replaced":
            head.bias = torch.nn.Parameter(torch.full_like(head.bias, 7))
        elif self.how == "half":
            client.model.half()
        elif self.how == "wrapped":
            client.model.head = torch.nn.Sequential(head, torch.nn.Dropout(0.5))
        else:
            client.model.add_module("more", torch.nn.Linear(1, 1))

    def predict(self, client: Client, x: Tensor) -> Tensor:
        return super().predict(client, x.to(next(client.model.parameters()).dtype))


@pytest.mark.parametrize("how", ["in place", "data", "statistics", "replaced", "half", "wrapped", "added"])
def test_what_an_evaluation_changes_is_undone(how: str) -> None:
    with ToyFederation(Adopter, {"how": how}) as toy:
        assert toy.run(evaluate=True).checked().hash == toy.run().checked().hash
