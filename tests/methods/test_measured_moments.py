"""Which model and which server state each method is measured with, and what `also_predict` measures."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.methods.sub_models import HALF, WHOLE, replies, server_of
from torch import Tensor

from polyfed.core import Client, Method, Payload, Server
from polyfed.core.class_tables import ClassTable
from polyfed.core.client import weights_of
from polyfed.methods.fed_dropout import FedDropout
from polyfed.methods.fedgen import FedGen
from polyfed.methods.fedgh import FedGH
from polyfed.methods.fedproto import FedProto
from polyfed.methods.fedrolex import FedRolex
from polyfed.methods.fedtgp import FedTGP
from polyfed.methods.heterofl import HeteroFL
from polyfed.methods.lg_fedavg import LGFedAvg
from polyfed.testing.engine_wrappers import RecordingEngine
from polyfed.testing.toy_federation import ToyFederation


def table(rows: dict[int, Tensor]) -> ClassTable:
    return ClassTable.of(rows, 3)


def published(method: Method, name: str, value: Any) -> Payload:
    """Return what clients receive for an evaluation if the server has one entry in its state."""
    server = Server((), 3, 1, 0, lambda spec: None)  # type: ignore[arg-type, return-value]
    server.state = {name: value}
    return Payload(method.publish(server).shared)


@pytest.fixture
def client(linears: Any) -> Client:
    made: Client = linears().client("0", [0, 1, 1, 0])
    made.model.eval()
    return made


@pytest.fixture
def x(client: Client) -> Tensor:
    return torch.rand(40, 1, 1, 4, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("method", [LGFedAvg(), FedGen()])
@torch.no_grad()
def test_clients_have_the_averaged_head_and_also_their_own(
    method: Method, client: Client, x: Tensor, linears: Any
) -> None:
    own, averaged = client.model(x), linears().model("averaged").head
    method.adopt(client, published(method, "head", weights_of(averaged)))
    assert torch.equal(method.predict(client, x), averaged(client.model.features(x)))
    assert torch.equal(method.also_predict()["local head"](client, x), own)
    assert not torch.equal(own, averaged(client.model.features(x)))


@torch.no_grad()
def test_fedgh_clients_have_their_own_head_and_also_the_servers(client: Client, x: Tensor, linears: Any) -> None:
    own, trained = client.model(x), linears().model("server").head
    FedGH().adopt(client, published(FedGH(), "head", weights_of(trained)))
    assert torch.equal(FedGH().predict(client, x), own)
    assert torch.equal(FedGH().also_predict()["server head"](client, x), trained(client.model.features(x)))


@torch.no_grad()
def test_fedproto_has_this_rounds_prototypes_among_own_classes_on_own_samples(client: Client, x: Tensor) -> None:
    f = client.model.features(x)
    client.state["prototypes"] = table({c: f[c] for c in range(3)})  # those that it trained with
    new = {c: f[10 + c] for c in range(3)}
    FedProto().adopt(client, published(FedProto(), "prototypes", table(new)))
    distances = torch.stack([(f - new[c]).norm(dim=1) for c in range(3)], 1)
    assert torch.equal(FedProto().predict(client, x).argmax(1), distances.argmin(1))
    assert set(distances.argmin(1).tolist()) == {0, 1, 2}
    assert torch.equal(FedProto().predict_personal(client, x).argmax(1), distances[:, :2].argmin(1))  # classes 0, 1
    ways = FedProto().also_predict()
    assert torch.equal(ways["all classes"](client, x).argmax(1), distances.argmin(1))
    assert torch.equal(ways["head"](client, x), client.model(x))
    head = FedProto(predict_with="head")
    assert torch.equal(head.predict_personal(client, x), client.model(x))


@torch.no_grad()
def test_fedproto_predicts_among_all_classes_if_none_of_its_own_is_known(client: Client, x: Tensor) -> None:
    client.state["prototypes"] = table({2: torch.zeros(3)})
    assert set(FedProto().predict_personal(client, x).argmax(1).tolist()) == {2}


@torch.no_grad()
def test_fedtgp_has_the_prototypes_of_this_round_and_also_the_previous_ones(client: Client, x: Tensor) -> None:
    f = client.model.features(x)
    previous, new = ({c: f[start + c] for c in range(3)} for start in (0, 10))
    client.state["prototypes"] = table(previous)
    FedTGP().adopt(client, published(FedTGP(), "prototypes", table(new)))
    for rows, predict in ((new, FedTGP().predict), (previous, FedTGP().also_predict()["previous prototypes"])):
        distances = torch.stack([(f - rows[c]).norm(dim=1) for c in range(3)], 1)
        assert torch.equal(predict(client, x).argmax(1), distances.argmin(1))


@pytest.mark.parametrize("method", [FedProto(), FedTGP()])
def test_only_heads_give_probabilities(method: Method) -> None:
    ways = ["", *method.also_predict()]
    assert [way for way in ways if method.predicts_probabilities(way)] == ["head"]


# the whole model of the server


@pytest.mark.parametrize("method", [HeteroFL, FedRolex, FedDropout])
def test_the_servers_model_is_measured_at_every_client(method: type[HeteroFL]) -> None:
    # Client 1 holds the whole model: its accuracy is that of the server's model, which all clients report.
    with ToyFederation(method, {}) as toy:
        outcome = toy.run(toy.config(models={"group": [HALF, WHOLE]}, rounds=1), evaluate=True).checked()
    own, whole = outcome.accuracy["global"], outcome.accuracy["global by server model"]
    assert set(whole.values()) == {own["1"]}
    assert outcome.accuracy["personal by server model"]["1"] == outcome.accuracy["personal"]["1"]


def test_without_a_client_that_holds_it_the_servers_model_uses_batch_statistics() -> None:
    with ToyFederation(HeteroFL, {}) as toy:
        server = server_of(toy, models={"group": [HALF], "server": WHOLE})
        whole: Any = HeteroFL().whole_model(server)["whole"]
        assert (whole["spec"], whole["measured"]) == (WHOLE, False)
        assert HeteroFL(whole_accuracy=False).publish(server).shared == {}


def test_federated_dropout_has_the_statistics_of_each_clients_own_slice() -> None:
    name, models = "backbone.trunk.stem.0.norm.running_mean", {"group": [HALF, WHOLE]}
    with ToyFederation(FedDropout, {}) as toy:
        recorder = RecordingEngine()
        outcome = toy.run(toy.config(models=models, rounds=1), wrap=recorder).checked()
        server = server_of(toy, models=models)
        server.state, server.round = outcome.server, 1
        sent, slices = replies(recorder, "measure"), FedDropout().publish(server).each
        for k in "024":  # narrow clients, each with its own channels
            assert torch.equal(Payload(slices[k]).weights("statistics")[name], sent[k].weights("statistics")[name])
        FedDropout().collect(server, NoClients())  # type: ignore[arg-type]
        slices = FedDropout().publish(server).each
    assert not any("statistics" in slices[k] for k in "024")  # a new round draws other channels
    assert all("statistics" in slices[k] for k in "13")  # the whole model


class NoClients:
    """A cohort in which no client replies."""

    ids = ()

    def stream(self, *steps: Any, **given: Any) -> list[tuple[str, Payload]]:
        return []
