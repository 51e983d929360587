"""MOON: the contrastive loss, its frozen reference models, and the projection head."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from polyfed.core import rng
from polyfed.core.client import weights_of
from polyfed.core.payload import Payload
from polyfed.errors import InputError
from polyfed.methods.fedavg import FedAvg
from polyfed.methods.moon.method import Moon, contrastive_loss
from polyfed.testing.toy_federation import ToyFederation

LABELS = [0, 0, 1, 2, 2]


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=rng.generator("moon", *shape))


def test_equal_references_cost_log_2() -> None:
    r, same = drawn(6, 5), drawn(6, 5) + 1
    assert contrastive_loss(r, same, same, 0.5).item() == pytest.approx(math.log(2))


def test_the_loss_by_hand() -> None:
    # r = (1, 0), global = (2, 0): cosine 1; last = (0, 3): cosine 0. T = 0.5: -log(e^2 / (e^2 + e^0)).
    value = contrastive_loss(torch.tensor([[1.0, 0]]), torch.tensor([[2.0, 0]]), torch.tensor([[0.0, 3]]), 0.5)
    assert value.item() == pytest.approx(-math.log(math.exp(2) / (math.exp(2) + 1)))


def test_small_temperatures_do_not_overflow() -> None:
    r = drawn(4, 5)
    assert math.isfinite(contrastive_loss(r, -r, r, 1e-6).item())


def test_a_common_rotation_changes_nothing() -> None:
    turn, _ = torch.linalg.qr(drawn(5, 5))
    r, toward, away = drawn(7, 5), drawn(7, 5) * 2 + 1, drawn(7, 5) - 1
    before, after = (
        contrastive_loss(r, toward, away, 0.5),
        contrastive_loss(r @ turn, toward @ turn, away @ turn, 0.5),
    )
    assert after.item() == pytest.approx(before.item(), rel=1e-5)


@pytest.mark.parametrize("projection", [True, False])
def test_mu_0_is_bit_identical_to_fedavg(projection: bool) -> None:
    with ToyFederation(Moon, {"mu": 0.0, "allow_degenerate": True, "projection": projection}) as toy:
        config = toy.config()
        moon, plain = toy.run(config).checked(), toy.run(config, method=FedAvg()).checked()
    a: Any = moon.server
    b: Any = plain.server
    assert a.keys() == b.keys() == {"model"}
    assert all(torch.equal(a["model"][name], t) for name, t in b["model"].items())
    assert [stats.up for stats in moon.round_stats] == [stats.up for stats in plain.round_stats]


def test_the_first_round_has_no_contrastive_loss() -> None:
    with ToyFederation(Moon, {}) as toy:
        models: list[Any] = []
        for rounds in (1, 2):
            config = toy.config(rounds=rounds)
            models += [
                toy.run(config).checked().server["model"],
                toy.run(config, method=FedAvg()).checked().server["model"],
            ]
    first, fedavg, second, fedavg_second = models
    assert all(torch.equal(first[name], t) for name, t in fedavg.items())
    assert not all(torch.equal(second[name], t) for name, t in fedavg_second.items())


@pytest.mark.parametrize("projection", [True, False])
def test_the_second_round_by_hand(linears: Any, projection: bool) -> None:
    # one full step down CE + mu l_con, with the received model to come near to and the last one to leave
    make = linears(norm=False)
    method = Moon(mu=2.0, projection=projection, projection_width=7)
    client = make.client("0", LABELS, seed="last")
    with rng.seeded("projections"):
        before, sent = method.projector(3), method.projector(3)
    client.state["projection"] = weights_of(before) if projection else {}
    received = make.model("received")
    msg = {"model": weights_of(received), **({"projection": weights_of(sent)} if projection else {})}
    reply: Any = method.train(client, Payload(msg))

    last, now, kept = make.model("last"), make.model("received"), make.model("received")
    x, y = make.client("0", LABELS).train.inputs.float() / 255, torch.tensor(LABELS)
    head: nn.Module = sent if projection else nn.Identity()
    old: nn.Module = before if projection else nn.Identity()
    f = now.features(x)
    loss = nn.functional.cross_entropy(now.head(f), y)
    with rng.seeded("projections"):
        method.projector(3)
        frozen = method.projector(3) if projection else nn.Identity()
    term = contrastive_loss(head(f), frozen(kept.features(x)).detach(), old(last.features(x)).detach(), 0.5)
    (loss + 2.0 * term).backward()  # type: ignore[no-untyped-call]
    for module, sent_up in ((now, reply["model"]), (head, reply.get("projection", {}))):
        for name, p in module.named_parameters():
            assert p.grad is not None
            assert torch.allclose(sent_up[name], p.detach() - 0.1 * p.grad, rtol=1e-4, atol=1e-6)
    assert ("projection" in reply) == projection


def test_teachers_are_frozen_copies(linears: Any) -> None:
    client = linears(norm=True).client("0", LABELS)
    client.state["projection"] = {}
    last = Moon(projection=False).previous(client)
    assert last is not None and not last.training and not any(p.requires_grad for p in last.parameters())
    before = weights_of(last)
    client.fit()
    last(client.train.inputs.float() / 255)
    assert all(torch.equal(before[name], t) for name, t in last.state_dict().items())


@pytest.mark.parametrize(
    ("changed", "widths"),
    [
        ({"models": {"group": ["tiny-resnet"]}}, [64]),
        (
            {"splitting": "width", "models": {"group": ["tiny-resnet@0.5", "tiny-resnet"]}},
            [32, 64],
        ),
        (
            {"splitting": "architecture", "models": {"group": ["tiny-cnn", {"name": "tiny-cnn", "feature_dim": 24}]}},
            [24, 64],
        ),
    ],
    ids=["one", "width", "architecture"],
)
def test_the_projection_has_the_clients_features_as_inputs(changed: Any, widths: list[int]) -> None:
    with ToyFederation(Moon, {"projection_width": 16}) as toy:
        config = toy.config(rounds=2, **changed)
        profiles = toy.federation(config).profiles()
        outcome = toy.run(config).checked()
        states: dict[str, Any] = {profile.name: outcome.client(profile.name)["state"] for profile in profiles}
    assert sorted({profile.features for profile in profiles}) == widths
    for profile in profiles:
        projection = states[profile.name]["projection"]
        assert projection["0.weight"].shape == (16, profile.features)
        assert projection["2.weight"].shape == (16, 16)
    # up per round: every client's projection, 16 d_k + 16 + 16 * 16 + 16 numbers
    numbers = sum(16 * profile.features + 16 + 16 * 16 + 16 for profile in profiles)
    assert outcome.round_stats[1].up["projection"] == outcome.round_stats[1].down["projection"] == 4 * numbers


def test_columns_of_features_without_a_holder_do_not_change() -> None:
    # only clients of half the width take part: their 32 features are the first, the other columns keep their bits
    with ToyFederation(Moon, {"projection_width": 16}) as toy:
        config = toy.config(rounds=2, splitting="width", models={"group": ["tiny-resnet@0.5", "tiny-resnet"]})
        halves = tuple(p.name for p in toy.federation(config).profiles() if p.features == 32)
        after: Any = toy.run(config, selected=lambda number: halves).checked().server["projection"]
        before: Any = toy.run(config, selected=lambda number: ()).checked().server["projection"]
    assert halves
    assert torch.equal(after["0.weight"][:, 32:], before["0.weight"][:, 32:])
    assert not torch.equal(after["0.weight"][:, :32], before["0.weight"][:, :32])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mu": 0.0}, "mu is 0, which switches Moon off"),
        ({"temperature": 0.0}, "expected a number above 0"),
        ({"projection_width": 0}, "at least 1"),
    ],
)
def test_wrong_options_raise(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Moon(**fields)
