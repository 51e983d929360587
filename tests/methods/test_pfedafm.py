"""pFedAFM: its two training steps, its mixing vector, and the aggregate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from polyfed import catalogue, testing
from polyfed.core.client import Client, weights_of
from polyfed.core.payload import Payload
from polyfed.errors import InputError
from polyfed.methods.local import Local
from polyfed.methods.pfedafm import PFedAFM
from polyfed.models import ModelSpec, build
from polyfed.testing.rounds import InMemoryClients, Outcome, run_rounds
from polyfed.testing.toy_federation import ToyFederation

LABELS = [0, 0, 1, 2, 2, 2]
SHARED = ([0, 1, 2], [0, 0, 1, 2, 2])


def made(make: Any, name: str = "0", labels: Any = LABELS, seed: str = "private") -> Client:
    """A client that can build the shared extractor."""
    client: Client = make.client(name, labels, seed)
    client.build = lambda spec: make.model("shared")
    client.round, client.step = 1, "train"
    return client


def several(make: Any, *labels: Any) -> list[Callable[[], Client]]:
    return [lambda k=k: made(make, str(k), labels[k], f"seed {k}") for k in range(len(labels))]  # type: ignore[misc]


def message(model: Any) -> Payload:
    return Payload({"auxiliary": "", "extractor": weights_of(model.backbone)})


def ready(client: Client, model: Any, alpha: list[float]) -> nn.Module:
    """Set the state that the client would have received, and return the extractor built from it."""
    client.state = {"auxiliary": "", "extractor": weights_of(model.backbone), "alpha": torch.tensor(alpha)}
    return PFedAFM().extractor(client)


def state_of(outcome: Outcome, client: str) -> Any:
    return outcome.client(client)["state"]


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_the_mixture_step_by_hand(linears: Any) -> None:
    # L = CE(h(a * phi + (1 - a) * G)). By the chain rule dL/da_j = sum_i dL/dmix_ij (phi_ij - G_ij); two full-batch
    # steps of 0.5 with momentum 0.5 from a = (0.9, 0.2, 0.0), clamped after each, and two steps of 0.1 of the model.
    make = linears(settings={"epochs": 2})
    client, shared = made(make), make.model("shared")
    a = torch.tensor([0.9, 0.2, 0.0])
    extractor = ready(client, shared, a.tolist())
    PFedAFM(lr_alpha=0.5, alpha_momentum=0.5).train_mixture(client, extractor)
    velocity = torch.zeros(3)
    private = make.model("private")
    x, y = client.train.inputs.float() / 255, client.train.labels
    for _ in range(2):
        private.zero_grad()
        phi, g = private.features(x), shared.features(x).detach()
        mix = a * phi + (1 - a) * g
        mix.retain_grad()
        F.cross_entropy(private.head(mix), y).backward()  # type: ignore[no-untyped-call]
        slope = (mix.grad * (phi - g)).sum(0).detach()
        assert bool((slope.abs() > 1e-4).all())
        velocity = 0.5 * velocity + slope
        a = (a - 0.5 * velocity).clamp(0, 1)
        with torch.no_grad():
            for parameter in private.parameters():
                parameter -= 0.1 * parameter.grad
    assert torch.allclose(client.memory.tensor("alpha"), a, rtol=1e-5, atol=1e-6)
    for name, tensor in weights_of(private).items():
        assert torch.allclose(weights_of(client.model)[name], tensor, rtol=1e-5, atol=1e-6)


def test_the_extractor_step_by_hand(linears: Any) -> None:
    make = linears()
    client, shared = made(make), make.model("shared")
    extractor = ready(client, shared, [1.0, 1.0, 1.0])
    PFedAFM().train_extractor(client, extractor)
    head = make.model("private").head
    x, y = client.train.inputs.float() / 255, client.train.labels
    F.cross_entropy(head(shared.features(x)), y).backward()  # type: ignore[no-untyped-call]
    for name, parameter in shared.backbone.named_parameters():
        wanted = parameter.detach() - 0.1 * parameter.grad
        assert torch.allclose(weights_of(extractor)[name], wanted, rtol=1e-5, atol=1e-7)


def test_each_step_does_not_change_the_other_part(linears: Any) -> None:
    make = linears(norm=True, settings={"batch_size": 2, "epochs": 2})
    client = made(make)
    extractor = ready(client, make.model("shared"), [0.5, 0.5, 0.5])
    before = weights_of(extractor)
    PFedAFM().train_mixture(client, extractor)
    assert same(weights_of(extractor), before)  # G, with its statistics
    assert not torch.equal(client.memory.tensor("alpha"), torch.full((3,), 0.5))
    model, alpha = weights_of(client.model), client.memory.tensor("alpha").clone()
    PFedAFM().train_extractor(client, extractor)
    assert same(weights_of(client.model), model)
    assert torch.equal(client.memory.tensor("alpha"), alpha)
    assert not same(weights_of(extractor), before)
    assert all(p.requires_grad and p.grad is None for p in client.model.parameters())
    assert all(p.requires_grad for p in extractor.parameters())


def test_with_only_private_features_models_equal_local_training() -> None:
    with ToyFederation(PFedAFM, {"lr_alpha": 0.0, "allow_degenerate": True}) as toy:
        config = toy.config(rounds=3, train={"batch_size": 8, "lr": 0.05, "clip_norm": 0.3, "momentum": 0.5})
        mixed, local = toy.run(config).checked(), toy.run(config, method=Local()).checked()
        for k in "01234":
            assert same(mixed.client(k).weights("model"), local.client(k).weights("model"))


@pytest.mark.parametrize("start", [0.0, 0.3, 1.0])
def test_alpha_stays_between_0_and_1(start: float) -> None:
    with ToyFederation(PFedAFM, {"lr_alpha": 30.0, "alpha_start": start}) as toy:
        outcome = toy.run(toy.config(rounds=3)).checked()
        alphas = [state_of(outcome, k)["alpha"] for k in "01234"]
    for alpha in alphas:
        assert alpha.min() >= 0 and alpha.max() <= 1
        assert not torch.equal(alpha, torch.full((64,), start))


def test_every_client_has_its_own_alpha() -> None:
    with ToyFederation(PFedAFM, {"lr_alpha": 1.0}) as toy:
        outcome = toy.run().checked()
        alphas = [state_of(outcome, k)["alpha"] for k in "01234"]
    assert all(not torch.equal(alphas[i], alphas[j]) for i in range(5) for j in range(i))


def test_alpha_has_no_weight_decay(linears: Any) -> None:
    # With equal extractors phi = G the mixture does not depend on alpha, so only decay could move it.
    make = linears(settings={"weight_decay": 0.1})
    client = made(make, seed="shared")
    extractor = ready(client, make.model("shared"), [0.4, 0.5, 0.6])
    PFedAFM(lr_alpha=1.0).train_mixture(client, extractor)
    assert torch.allclose(client.memory.tensor("alpha"), torch.tensor([0.4, 0.5, 0.6]), atol=1e-6)


def test_the_aggregate_is_the_weighted_mean(linears: Any) -> None:
    makers = several(linears(norm=True), *SHARED, [1, 1])
    start = makers[0]().model  # what the server starts from
    a, b = (PFedAFM().train(maker(), message(start))["extractor"] for maker in makers[:2])
    assert isinstance(a, dict) and isinstance(b, dict)
    for weights, (p, q) in {"samples": (3 / 8, 5 / 8), "uniform": (0.5, 0.5)}.items():
        method = PFedAFM(weights=weights)  # type: ignore[arg-type]
        outcome = run_rounds(InMemoryClients(method, makers), selected=lambda n: ("0", "1")).checked()
        got: Any = outcome.server["extractor"]
        for name in (name for name in got if got[name].is_floating_point()):
            assert torch.allclose(got[name], p * a[name] + q * b[name], rtol=1e-5, atol=1e-7)
        assert not torch.allclose(got["1.weight"], a["1.weight"]) and not torch.allclose(
            got["1.weight"], b["1.weight"]
        )
        assert set(outcome.ledger.digests) == {"0", "1"}


def test_prediction_uses_the_received_extractor(linears: Any) -> None:
    make = linears(norm=True)
    client, shared = made(make), make.model("shared")
    x = client.train.inputs.float() / 255
    client.model.eval()
    with torch.no_grad():
        assert torch.equal(PFedAFM().predict(client, x), client.model(x))  # before the first round
    PFedAFM(lr_alpha=2.0).train(client, message(shared))
    client.model.eval()
    alpha = client.memory.tensor("alpha")
    assert not torch.equal(alpha, torch.ones(3))
    with torch.no_grad():
        received = shared.eval().features(x)
        wanted = client.model.head(alpha * client.model.features(x) + (1 - alpha) * received)
        assert torch.allclose(PFedAFM().predict(client, x), wanted, rtol=1e-6)


def test_local_statistics_stay_at_the_client(linears: Any) -> None:
    # Client 0 goes into round 2 with the mean of all weights, and with its own statistics of round 1 or their mean.
    make = linears(norm=True)
    name = "2.running_mean"
    for buffers in ("local", "average"):
        method = PFedAFM(buffers=buffers)
        first = run_rounds(InMemoryClients(method, several(make, *SHARED)), 1).checked()
        second = run_rounds(InMemoryClients(method, several(make, *SHARED)), 2).checked()
        held: Any = second.client("0")["state"]
        mean: Any = first.server["extractor"]
        reply: Any = method.train(several(make, *SHARED)[0](), message(several(make, *SHARED)[0]().model))[
            "extractor"
        ]
        assert torch.equal(held["extractor"]["1.weight"], mean["1.weight"])
        assert torch.equal(held["extractor"][name], (reply if buffers == "local" else mean)[name])
        assert not torch.equal(reply[name], mean[name])


@pytest.mark.parametrize("auxiliary", [None, "tiny-mlp"])
def test_bytes_are_those_of_the_extractor(auxiliary: str | None) -> None:
    # #G each way for each client of the round, without a head; with BatchNorm its statistics and counters as well
    extractor = build(ModelSpec.parse(auxiliary or "tiny-mobile"), shape=(1, 8, 8), classes=4).backbone
    norms = [m for m in extractor.modules() if isinstance(m, nn.BatchNorm2d)]
    size = 4 * sum(p.numel() for p in extractor.parameters()) + sum(8 * m.num_features + 8 for m in norms)
    with ToyFederation(PFedAFM, {"auxiliary": auxiliary}) as toy:
        outcome = toy.run(selected=lambda n: ("1", "2", "4")).checked()
    for stats in outcome.round_stats:
        assert stats.up == {"extractor": 3 * size, "samples": 0}
        assert stats.down == {"auxiliary": 0, "extractor": 3 * size}


def test_an_extractor_of_another_width_raises() -> None:
    with (
        ToyFederation(PFedAFM, {"auxiliary": "tiny-cnn@0.5"}) as toy,
        pytest.raises(InputError, match=r"^method.auxiliary tiny-cnn@0.5 has 32 features and .* have 64; name"),
    ):
        toy.run()


@pytest.mark.parametrize(
    ("fields", "expected_error"),
    [
        ({"lr_alpha": 0.0}, r"^method.lr_alpha is 0, which switches PFedAFM off; .*allow_degenerate: true$"),
        ({"alpha_start": 1.5}, r"^method.alpha_start is 1.5; expected a number of at least 0 and at most 1"),
    ],
)
def test_wrong_options_raise(fields: dict[str, float], expected_error: str) -> None:
    with pytest.raises(InputError, match=expected_error):
        catalogue.make({"name": "pfedafm", **fields})


@pytest.mark.parametrize("check", ["independent_of_memory_budget", "client_with_one_sample"])
def test_options_pass_the_battery(check: str) -> None:
    testing.run_check(check, PFedAFM, {"buffers": "local", "weights": "uniform", "alpha_start": 0.5})
