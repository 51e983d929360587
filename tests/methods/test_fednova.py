"""FedNova: its normalisers, the normalised mean, and cases that are bit-identical to FedAvg."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from polyfed.core.client import weights_of
from polyfed.core.payload import Payload
from polyfed.errors import InputError
from polyfed.methods.fedavg import FedAvg
from polyfed.methods.fednova import FedNova
from polyfed.testing.rounds import InMemoryClients, run_rounds
from polyfed.testing.toy_federation import CLASS_COUNTS, ToyFederation
from polyfed.training import TrainSettings

LABELS = ([0, 1, 2], [0, 0, 1, 2, 2])


@pytest.mark.parametrize(
    ("weights", "changed"),
    [
        ("samples", {}),
        ("uniform", {"models": {"group": ["tiny-mlp"]}}),
        ("samples", {"splitting": "stage", "models": {"group": "tiny-resnets"}}),
        ("uniform", {"splitting": "width", "models": {"group": ["tiny-resnet@0.5", "tiny-resnet"]}}),
    ],
    ids=["batchnorm", "plain", "stages", "widths"],
)
def test_equal_numbers_of_steps_are_bit_identical_to_fedavg(weights: Any, changed: dict[str, Any]) -> None:
    with ToyFederation(FedNova, {}) as toy:
        config = toy.config(train={"batch_size": 4, "lr": 0.05, "momentum": 0.9, "steps": 3}, **changed)
        nova = toy.run(config, method=FedNova(weights=weights)).checked()
        avg = toy.run(config, method=FedAvg(weights=weights)).checked()
    assert nova.hash == avg.hash


def test_unequal_numbers_of_steps_are_not_fedavg() -> None:
    with ToyFederation(FedNova, {}) as toy:
        config = toy.config(((16, 0, 0, 0), *CLASS_COUNTS[1:]))
        assert toy.run(config).checked().hash != toy.run(config, method=FedAvg()).checked().hash


def test_the_normalised_mean_by_hand(linears: Any) -> None:
    # Uniform, a = (2, 1): theta + tau_eff (D_0/2 + D_1/1)/2 with tau_eff = (2 + 1)/2 and D_k = theta_k - theta.
    make = linears()
    method = FedNova(weights="uniform", epochs=[2, 1])
    start = weights_of(make.model())
    changes = []
    for k, labels in enumerate(LABELS):
        client = make.client(str(k), labels)
        client.round, client.step = 1, "train"
        received: Any = method.train(client, Payload({"model": start}))
        assert received["normaliser"] == [2.0, 1.0][k]
        changes.append({n: t - start[n] for n, t in received["model"].items()})
    outcome = run_rounds(InMemoryClients(method, make.several(*LABELS))).checked()
    fixed = run_rounds(InMemoryClients(FedNova(weights="uniform", epochs=[2, 1], tau_eff=6.0), make.several(*LABELS)))
    after: Any = outcome.server["model"]
    longer: Any = fixed.checked().server["model"]
    for name, old in start.items():
        direction = (changes[0][name] / 2 + changes[1][name]) / 2
        assert torch.allclose(after[name], old + 1.5 * direction, rtol=1e-5, atol=1e-7)
        assert torch.allclose(longer[name], old + 6.0 * direction, rtol=1e-5, atol=1e-6)


def test_with_a_proximal_term_the_effective_steps_are_counted(linears: Any) -> None:
    # a_k = (1 - (1 - lr mu)^tau) / (lr mu) with lr mu = 0.05: 1.95 for two steps, 1 for one; tau_eff = (2 + 1)/2.
    make = linears()
    method = FedNova(weights="uniform", epochs=[2, 1], mu=0.5)
    start = weights_of(make.model())
    changes = []
    for k, labels in enumerate(LABELS):
        client = make.client(str(k), labels)
        client.round, client.step = 1, "train"
        received: Any = method.train(client, Payload({"model": start}))
        assert received["normaliser"] == pytest.approx([1.95, 1.0][k]) and received["steps"] == [2, 1][k]
        changes.append({n: t - start[n] for n, t in received["model"].items()})
    after: Any = run_rounds(InMemoryClients(method, make.several(*LABELS))).checked().server["model"]
    for name, old in start.items():
        direction = (changes[0][name] / 1.95 + changes[1][name]) / 2
        assert torch.allclose(after[name], old + 1.5 * direction, rtol=1e-5, atol=1e-7)


def test_more_steps_give_no_more_weight(linears: Any) -> None:
    # With small steps a gradient hardly changes on the way: D_k is a_k times the client's own gradient step s_k.
    # FedNova moves along (s_0 + s_1)/2 whatever the numbers of steps; FedAvg along (10 s_0 + s_1)/2.
    make = linears(settings={"lr": 1e-4})
    start = weights_of(make.model())["head.weight"]

    def moved(epochs: list[int]) -> torch.Tensor:
        method = FedNova(weights="uniform", epochs=epochs)
        model: Any = run_rounds(InMemoryClients(method, make.several(*LABELS))).checked().server["model"]
        change: torch.Tensor = (model["head.weight"] - start).flatten()
        return torch.nn.functional.normalize(change, dim=0)

    assert moved([10, 1]) @ moved([1, 1]) == pytest.approx(1, abs=1e-3)
    assert moved([1, 10]) @ moved([1, 1]) == pytest.approx(1, abs=1e-3)


def test_clients_without_steps_are_left_out(linears: Any) -> None:
    make = linears()
    both = run_rounds(InMemoryClients(FedNova(epochs=[0, 2]), make.several(*LABELS))).checked()
    alone = run_rounds(
        InMemoryClients(FedNova(epochs=[0, 2]), make.several(*LABELS)), selected=lambda n: ("1",)
    ).checked()
    idle = run_rounds(InMemoryClients(FedNova(epochs=[0, 0]), make.several(*LABELS))).checked()
    one: Any = both.server["model"]
    other: Any = alone.server["model"]
    still: Any = idle.server["model"]
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert all(torch.equal(still[name], t) for name, t in weights_of(make.model()).items())


def test_normalisers() -> None:
    # Momentum 0.5, two steps: the first gradient moves by 1 + 0.5, the second by 1: a = 2.5. Proximal with eta mu =
    # 0.1: the first step is shrunk by 0.9 in the second: a = 0.9 + 1.
    assert FedNova().normaliser(TrainSettings(), 7) == 7
    assert FedNova().normaliser(TrainSettings(momentum=0.5), 2) == pytest.approx(2.5)
    assert FedNova(mu=1.0).normaliser(TrainSettings(lr=0.1), 2) == pytest.approx(1.9)
    assert FedNova().normaliser(TrainSettings(momentum=1e-9), 7) == pytest.approx(7)
    assert FedNova(mu=1e-9).normaliser(TrainSettings(lr=0.1), 7) == pytest.approx(7, rel=1e-4)
    assert FedNova(allow_step_count=True).normaliser(TrainSettings(optimizer="adam"), 7) == 7


def test_momentum_normaliser_is_what_momentum_does() -> None:
    # with a constant gradient of 1 and a step size of 1, theta ends at -a
    theta = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([theta], lr=1.0, momentum=0.7)
    for _ in range(5):
        theta.grad = torch.ones(1)
        optimizer.step()
    assert -theta.item() == pytest.approx(FedNova().normaliser(TrainSettings(momentum=0.7), 5), rel=1e-5)


@pytest.mark.parametrize(
    ("fields", "train", "message"),
    [
        ({}, {"optimizer": "adam"}, "no normaliser known for Adam"),
        ({"mu": 0.1}, {"momentum": 0.9}, "momentum together with a proximal term"),
    ],
)
def test_unknown_normalisers_raise_before_the_first_round(fields: Any, train: Any, message: str) -> None:
    with ToyFederation(FedNova, fields) as toy:
        folder = toy.new_folder()
        with pytest.raises(InputError, match=message):
            toy.experiment(toy.settings(train=train), folder)
        assert not folder.exists()


def test_adam_with_step_counts_runs() -> None:
    with ToyFederation(FedNova, {"allow_step_count": True}) as toy:
        outcome = toy.run(toy.config(train={"optimizer": "adam", "batch_size": 8})).checked()
    assert outcome.ledger.digests


def test_wrong_options_raise() -> None:
    with pytest.raises(InputError, match="tau_eff is 0"):
        FedNova(tau_eff=0.0)


def test_an_overshooting_proximal_step_raises() -> None:
    # With lr mu >= 1 the offset from theta^t changes its sign in each step, and a_k may come out negative.
    with pytest.raises(InputError, match="overshoots"):
        FedNova(mu=30.0).normaliser(TrainSettings(lr=0.1), 4)
