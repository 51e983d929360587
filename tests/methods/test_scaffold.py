"""SCAFFOLD: its control variates, its fixed point at the common minimum, and errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from polyfed.core.client import weights_of
from polyfed.core.payload import Payload
from polyfed.errors import InputError
from polyfed.methods.fedavg import FedAvg
from polyfed.methods.scaffold import Scaffold
from polyfed.models.slicing import OwnerMean
from polyfed.testing.rounds import InMemoryClients, run_rounds
from polyfed.testing.toy_federation import CLASS_COUNTS, ToyFederation

LABELS = ([0, 1, 2], [0, 0, 1, 2, 2])
TURNS = {1: ("0", "1", "2"), 2: ("1", "3")}
SPLITTINGS: list[dict[str, Any]] = [
    {},
    {"splitting": "stage", "models": {"group": "tiny-resnets"}},
    {"splitting": "width", "models": {"group": ["tiny-resnet@0.5", "tiny-resnet"]}},
    {"splitting": "architecture", "models": {"group": ["tiny-cnn", "tiny-resnet"]}},
]


CASES = [(changed, full, "II") for changed in SPLITTINGS for full in (True, False)] + [(SPLITTINGS[0], False, "I")]


@pytest.mark.parametrize(
    ("changed", "full", "option"),
    CASES,
    ids=[f"{c.get('splitting', 'none')}-{'full' if f else 'partial'}-{o}" for c, f, o in CASES],
)
def test_the_server_control_is_the_mean_over_clients(changed: dict[str, Any], full: bool, option: str) -> None:
    # c(q) = (1/N_q) sum of c_k(q) over all N_q clients that hold q, also those who never took part: theirs is zero
    with ToyFederation(Scaffold, {"option": option}) as toy:
        config = toy.config(rounds=2, **changed)
        federation = toy.federation(config)
        outcome = toy.run(config, selected=None if full else lambda number: TURNS[number]).checked()
        states: dict[str, Any] = {k: outcome.client(k)["state"] for k in outcome.ledger.digests}
    assert len(states) == (5 if full else 4)
    family, server = federation.family, outcome.server["control"]
    assert isinstance(server, dict)
    mean = OwnerMean(server)
    for profile in federation.profiles():
        zeros = {name: t * 0 for name, t in family.take(server, profile.spec).items()}
        own = states.get(profile.name, {"control": zeros})["control"]
        assert own.keys() == zeros.keys()
        mean.add(family.put(own, profile.spec), family.cut(profile.spec))
    wanted = mean.mean({name: t * 0 for name, t in server.items()})
    largest = max(float(t.abs().max()) for t in server.values())
    assert largest > 0.01
    for name, t in server.items():
        assert torch.allclose(t, wanted[name], rtol=1e-4, atol=1e-6 * max(1, largest)), name


def test_control_variates_cover_parameters_only() -> None:
    with ToyFederation(Scaffold, {}) as toy:
        outcome = toy.run().checked()
        names = {name for name, _ in toy.federation(toy.config()).make_client("0").model.named_parameters()}
    server: Any = outcome.server["control"]
    assert server.keys() == names


def test_one_client_is_bit_identical_to_fedavg() -> None:
    # c = c_0 always: the correction is 0
    with ToyFederation(Scaffold, {}) as toy:
        config = toy.config(CLASS_COUNTS[:1])
        controlled, plain = toy.run(config).checked(), toy.run(config, method=FedAvg()).checked()
    a: Any = controlled.server["model"]
    b: Any = plain.server["model"]
    assert all(torch.equal(a[name], b[name]) for name in b)


def test_after_one_full_step_both_options_equal_the_gradient(linears: Any) -> None:
    # From zero controls: II gives (theta^t - theta_k)/(1 eta) = grad L_k(theta^t), which is what I says.
    make = linears()
    client = make.client("0", LABELS[0])
    F.cross_entropy(client.model(client.train.inputs.float() / 255), client.train.labels).backward()  # type: ignore[no-untyped-call]
    gradient = {name: p.grad for name, p in client.model.named_parameters()}
    zeros = {name: torch.zeros_like(p) for name, p in client.model.named_parameters()}
    for option in ("I", "II"):
        other = make.client("0", LABELS[0])
        msg = Payload({"model": weights_of(other.model), "control": zeros})
        received: Any = Scaffold(option=option).train(other, msg)
        for name, g in gradient.items():
            assert g is not None and torch.allclose(received["control"][name], g, rtol=1e-3, atol=1e-5)


def test_a_step_is_corrected_by_the_difference(linears: Any) -> None:
    # theta - eta (g - c_k + c) with c_k = 0 and c = 0.3 everywhere: FedAvg's step and 0.1 * 0.3 less
    make = linears()
    plain, corrected = make.client("0", LABELS[0]), make.client("0", LABELS[0])
    control = {name: torch.full_like(p, 0.3) for name, p in plain.model.named_parameters()}
    start = weights_of(plain.model)
    plain.fit()
    Scaffold().train(corrected, Payload({"model": start, "control": control}))
    for name, p in plain.model.named_parameters():
        assert torch.allclose(corrected.model.get_parameter(name), p - 0.03, atol=1e-6)


def test_the_fixed_point_is_the_common_minimum(linears: Any) -> None:
    # Weight decay keeps the objective bounded; two clients that disagree, five full steps a round. FedAvg stops where
    # the clients' ways cancel, SCAFFOLD where their gradients do.
    make = linears(whole_head=True, features=3, settings={"epochs": 5, "lr": 0.3, "weight_decay": 0.1})
    labels = ([0, 0, 0, 1], [2, 2, 1, 2])

    def slope(method: Any) -> float:
        model: Any = run_rounds(InMemoryClients(method, make.several(*labels)), 40).checked().server["model"]
        total: list[Any] = []
        for k, own in enumerate(labels):
            client = make.client(str(k), own)
            client.load(model)
            loss = F.cross_entropy(client.model(client.train.inputs.float() / 255), client.train.labels)
            slopes = torch.autograd.grad(loss, list(client.model.parameters()))
            total.append([g + 0.1 * p.detach() for g, p in zip(slopes, client.model.parameters(), strict=True)])
        return float(sum(((a + b) / 2).square().sum() for a, b in zip(*total, strict=True)) ** 0.5)

    assert slope(Scaffold()) < 0.05 * slope(FedAvg(weights="uniform"))


@pytest.mark.parametrize(("train", "message"), [({"optimizer": "adam"}, "Adam"), ({"momentum": 0.9}, "momentum 0.9")])
def test_other_optimisers_raise_unless_allowed(train: dict[str, Any], message: str) -> None:
    with ToyFederation(Scaffold, {}) as toy:
        folder = toy.new_folder()
        with pytest.raises(InputError, match=f"SCAFFOLD needs plain SGD, but the clients train with {message}"):
            toy.experiment(toy.settings(train=train), folder)
        assert not folder.exists()
        allowed = toy.run(toy.config(train={"batch_size": 8, **train}), method=Scaffold(allow_any_optimizer=True))
    assert allowed.checked().ledger.digests
