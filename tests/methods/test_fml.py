"""FML: its two losses, detached targets, and the mean of the shared model."""

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
from polyfed.methods.fml import FML
from polyfed.methods.local import Local
from polyfed.models import ModelSpec, build
from polyfed.testing.rounds import InMemoryClients, run_rounds
from polyfed.testing.toy_federation import CLASS_COUNTS, ToyFederation
from polyfed.training.losses import kl_divergence

LABELS = [0, 0, 1, 2, 2, 2]
SHARED = ([0, 1, 2], [0, 0, 1, 2, 2])


def made(make: Any, name: str, labels: Any, seed: str = "private") -> Client:
    """A client that can build the shared model."""
    client: Client = make.client(name, labels, seed)
    client.build = lambda spec: make.model("shared")
    client.round, client.step = 1, "train"
    return client


def several(make: Any, *labels: Any) -> list[Callable[[], Client]]:
    return [lambda k=k: made(make, str(k), labels[k], f"seed {k}") for k in range(len(labels))]  # type: ignore[misc]


def message(model: nn.Module) -> Payload:
    return Payload({"auxiliary": "", "meme": weights_of(model)})


def test_one_step_of_both_models_by_hand(linears: Any) -> None:
    # With p = softmax(z / T) of the private and q = softmax(z_w / T) of the shared model, constants where they teach:
    # L_local = 0.3 CE(z)   + 0.7 T^2 mean_i sum_c q_ic (log q_ic - log p_ic)
    # L_meme  = 0.6 CE(z_w) + 0.4 T^2 mean_i sum_c p_ic (log p_ic - log q_ic)
    make = linears()
    client = made(make, "0", LABELS)
    reply: Any = FML(alpha=0.3, beta=0.6, temperature=2.0).train(client, message(make.model("shared")))
    private, shared = make.model("private"), make.model("shared")
    x, y = client.train.inputs.float() / 255, client.train.labels
    z, z_w = private(x), shared(x)
    p, q = (z / 2).softmax(1), (z_w / 2).softmax(1)
    p0, q0 = p.detach(), q.detach()
    local = 0.3 * F.cross_entropy(z, y) + 0.7 * 4 * (q0 * (q0.log() - p.log())).sum(1).mean()
    meme = 0.6 * F.cross_entropy(z_w, y) + 0.4 * 4 * (p0 * (p0.log() - q.log())).sum(1).mean()
    (local + meme).backward()
    for model, received in ((private, weights_of(client.model)), (shared, reply["meme"])):
        for name, parameter in model.named_parameters():
            wanted = parameter.detach() - 0.1 * parameter.grad
            assert torch.allclose(received[name], wanted, rtol=1e-5, atol=1e-7)
    assert client.fits[0].loss == pytest.approx(
        F.cross_entropy(z, y).item()
    )  # curves show the task's loss, undivided
    assert reply["samples"] == 6


def gradients(method: FML) -> tuple[Any, Any]:
    """Return the gradients of one model's loss with respect to its own and the other output."""
    own = torch.tensor([[1.0, -1.0], [0.5, 2.0]], requires_grad=True)
    other = torch.tensor([[0.0, 1.0], [3.0, -1.0]], requires_grad=True)
    total = sum(method.losses(0.5, own, other, torch.tensor([0, 1])), torch.zeros(()))
    mine, theirs = torch.autograd.grad(total, [own, other], allow_unused=True)
    return mine, theirs


def test_a_loss_moves_its_own_model_only() -> None:
    mine, theirs = gradients(FML())
    assert theirs is None
    assert mine.abs().sum() > 0.1


def test_attached_targets_are_an_option() -> None:
    _, theirs = gradients(FML(undetached_targets=True))
    assert theirs is not None and theirs.abs().sum() > 0.1


def test_equal_models_have_no_distillation_gradient() -> None:
    # KL = 0 and so is its gradient: what remains of the loss is share * CE.
    z = torch.tensor([[1.0, -1.0, 0.3], [0.5, 2.0, -4.0]], requires_grad=True)
    y = torch.tensor([0, 1])
    assert kl_divergence(z.detach(), z).item() == 0
    ce, rest = FML().losses(0.3, z, z.clone(), y)
    assert float((ce + rest).detach()) == pytest.approx(0.3 * F.cross_entropy(z, y).item())
    (received,) = torch.autograd.grad(ce + rest, z)
    (wanted,) = torch.autograd.grad(0.3 * F.cross_entropy(z, y), z)
    assert torch.allclose(received, wanted, atol=1e-7)


def test_the_divergence_by_hand() -> None:
    # p = (3/4, 1/4) against q = (1/2, 1/2): 3/4 log(3/2) + 1/4 log(1/2) = 0.130812. The second sample agrees: mean
    # over the batch 0.065406; PyTorch's default divides by the two classes as well.
    target = torch.tensor([[3.0, 1.0], [1.0, 1.0]]).log()
    logits = torch.zeros(2, 2)
    assert float(kl_divergence(target, logits)) == pytest.approx(0.065406, abs=1e-6)
    assert float(kl_divergence(target, logits, reduction="mean")) == pytest.approx(0.032703, abs=1e-6)
    # T = 2 turns the odds 3 into sqrt(3): p = (0.633975, 0.366025), KL = 0.036339, times T^2 = 0.145356, halved
    assert float(kl_divergence(target, logits, temperature=2.0)) == pytest.approx(0.072678, abs=1e-5)


@pytest.mark.parametrize("beta", [0.5, 1.0])
@pytest.mark.parametrize("clip", [None, 0.3])
def test_without_a_teacher_private_models_equal_local_training(beta: float, clip: float | None) -> None:
    # The shared model has BatchNorm and client 3, whose model has none, a last batch of one sample; the clipping of
    # one model must not touch the other.
    with ToyFederation(FML, {"alpha": 1.0, "beta": beta, "allow_degenerate": True}) as toy:
        config = toy.config(rounds=3, train={"batch_size": 8, "lr": 0.05, "clip_norm": clip, "momentum": 0.5})
        taught, local = toy.run(config).checked(), toy.run(config, method=Local()).checked()
        for k in "01234":
            mine, theirs = taught.client(k).weights("model"), local.client(k).weights("model")
            assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_with_a_teacher_they_differ(linears: Any) -> None:
    makers = several(linears(), *SHARED)
    taught, local = (run_rounds(InMemoryClients(m, makers), 2).checked() for m in (FML(), Local()))
    name = "backbone.1.weight"
    assert not torch.allclose(taught.client("0").weights("model")[name], local.client("0").weights("model")[name])


def test_each_model_is_run_once_per_batch(linears: Any) -> None:
    # A further pass for teaching in training mode would count as a batch in the statistics.
    make = linears(norm=True)
    client = made(make, "0", LABELS)
    reply: Any = FML().train(client, message(make.model("shared")))
    x = client.train.inputs.float().flatten(1) / 255
    for seed, received in (("private", weights_of(client.model)), ("shared", reply["meme"])):
        f = make.model(seed).backbone[1](x).detach()
        assert received["backbone.2.num_batches_tracked"].item() == 1
        assert torch.allclose(received["backbone.2.running_mean"], 0.1 * f.mean(0), rtol=1e-5)


def test_the_shared_model_is_the_mean_over_clients_that_replied(linears: Any) -> None:
    make = linears(norm=True)
    makers = several(make, *SHARED, [1, 1])
    start = makers[0]().model  # what the server starts from
    replies: list[Any] = [FML().train(maker(), message(start))["meme"] for maker in makers[:2]]
    for weights, (p, q) in {"uniform": (0.5, 0.5), "samples": (3 / 8, 5 / 8)}.items():
        method = FML(weights=weights)  # type: ignore[arg-type]
        outcome = run_rounds(InMemoryClients(method, makers), selected=lambda n: ("0", "1")).checked()
        received: Any = outcome.server["meme"]
        for name in received:
            if received[name].is_floating_point():
                assert torch.allclose(
                    received[name], p * replies[0][name] + q * replies[1][name], rtol=1e-5, atol=1e-7
                )
        assert set(outcome.ledger.digests) == {"0", "1"}


@pytest.mark.parametrize("auxiliary", [None, "tiny-mlp", "tiny-cnn@0.5"])
def test_bytes_are_those_of_the_shared_model(auxiliary: str | None) -> None:
    # #w each way for each client of the round; with BatchNorm also two vectors and a counter of 8 bytes for each
    shape = build(ModelSpec.parse(auxiliary or "tiny-mobile"), shape=(1, 8, 8), classes=4)
    norms = [m for m in shape.modules() if isinstance(m, nn.BatchNorm2d)]
    w = 4 * sum(p.numel() for p in shape.parameters()) + sum(8 * m.num_features + 8 for m in norms)
    with ToyFederation(FML, {"auxiliary": auxiliary}) as toy:
        outcome = toy.run(selected=lambda n: ("1", "2", "4")).checked()
    for stats in outcome.round_stats:
        assert stats.up == {"meme": 3 * w, "samples": 0}
        assert stats.down == {"auxiliary": 0, "meme": 3 * w}


def test_an_unknown_shared_model_raises() -> None:
    with ToyFederation(FML, {"auxiliary": "tiny-cn"}) as toy, pytest.raises(InputError, match="tiny-cnn"):
        toy.run()


def test_one_client_trains_its_two_models(linears: Any) -> None:
    makers = several(linears(), LABELS)
    outcome = run_rounds(InMemoryClients(FML(), makers), 1).checked()
    alone = makers[0]()
    reply: Any = FML().train(alone, message(makers[0]().model))
    meme: Any = outcome.server["meme"]
    assert all(torch.equal(meme[name], tensor) for name, tensor in reply["meme"].items())


@pytest.mark.parametrize(
    ("fields", "expected_error"),
    [
        ({"alpha": 1.0}, r"^method.alpha is 1, which switches FML off; .*allow_degenerate: true$"),
        ({"beta": 1.0}, r"^method.beta is 1, which"),
        ({"alpha": 1.5}, r"^method.alpha is 1.5; expected a number"),
        ({"temperature": 0.0}, r"^method.temperature is 0.0; expected a number above 0"),
    ],
)
def test_wrong_weights_raise(fields: dict[str, float], expected_error: str) -> None:
    with pytest.raises(InputError, match=expected_error):
        catalogue.make({"name": "fml", **fields})


OPTIONS: list[dict[str, Any]] = [
    {"weights": "samples", "temperature": 3.0},
    {"kl_reduction": "mean", "undetached_targets": True, "auxiliary": "tiny-mlp"},
]


@pytest.mark.parametrize("check", ["independent_of_memory_budget", "client_with_one_sample"])
@pytest.mark.parametrize("fields", OPTIONS)
def test_options_pass_the_battery(fields: dict[str, Any], check: str) -> None:
    testing.run_check(check, FML, fields)


def test_the_toy_data_has_an_incomplete_last_batch() -> None:
    assert sum(CLASS_COUNTS[3]) % 8 == 1
