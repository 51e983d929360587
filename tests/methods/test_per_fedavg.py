"""Per-FedAvg: meta steps on a parabola, limits that equal FedAvg, and evaluation without side effects."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from polyfed.core.client import Client, weights_of
from polyfed.core.client_profile import Profile, layout
from polyfed.core.payload import Payload
from polyfed.errors import InputError
from polyfed.methods.per_fedavg import PerFedAvg, _split
from polyfed.models.split import SplitModel
from polyfed.training import Samples, TrainSettings

CURVE = 3.0  # a of L = a/2 theta^2


def on_a_parabola(method: PerFedAvg, theta: float) -> float:
    """Return theta after one meta step; the samples do not matter."""
    model = SplitModel(nn.Flatten(), nn.Linear(1, 1, bias=False), feature_dim=1, classes=1)
    weight = model.head.get_parameter("weight")
    nn.init.constant_(weight, theta)
    samples = Samples(torch.zeros(6, 1, 1, 1, dtype=torch.uint8), torch.zeros(6, dtype=torch.int64))
    profile = Profile("0", "parabola", layout(model), layout(model.head), 1, 1, 6)
    client = Client(
        profile, model, samples, samples, TrainSettings(batch_size=2 if method.meta_gradient == "HF" else 3)
    )
    method.meta_learn(client, lambda x, y: CURVE / 2 * weight.square().sum())
    return weight.item()


def test_first_order_step_on_a_parabola() -> None:
    # u = (1 - alpha a) theta; theta - beta a u
    after = on_a_parabola(PerFedAvg(alpha=0.1, beta=0.05), 2.0)
    assert after == pytest.approx(2.0 - 0.05 * CURVE * (1 - 0.1 * CURVE) * 2.0, rel=1e-6)


def test_hessian_step_on_a_parabola() -> None:
    # grad of L(theta - alpha grad L) = (1 - alpha a) a (1 - alpha a) theta; the difference of gradients is exact here
    after = on_a_parabola(PerFedAvg(alpha=0.1, beta=0.05, meta_gradient="HF", delta=0.01), 2.0)
    assert after == pytest.approx(2.0 - 0.05 * CURVE * (1 - 0.1 * CURVE) ** 2 * 2.0, rel=1e-5)


def test_the_meta_step_is_the_learning_rate_of_the_config(linears: Any) -> None:
    moved = []
    for beta in (None, 0.1, 0.3):
        client = linears(settings={"lr": 0.1}).client("0", [0, 1, 2, 0])
        client.round, client.step = 1, "train"
        PerFedAvg(beta=beta).learn(client)
        moved.append(weights_of(client.model)["head.weight"])
    assert torch.equal(moved[0], moved[1]) and not torch.equal(moved[0], moved[2])


def test_without_inner_steps_it_is_sgd_on_the_second_parts(linears: Any) -> None:
    # alpha 0: theta <- theta - beta grad L(theta; D'), where D' is the second half of each batch of twice the size
    make = linears(settings={"batch_size": 2})
    labels = [0, 0, 1, 2, 2, 1, 0, 1]
    client, by_hand = make.client("0", labels), make.client("0", labels)
    PerFedAvg(alpha=0.0, beta=0.2, allow_degenerate=True).learn(client)
    model = by_hand.model
    for x, y in by_hand.train.batches(4, shuffle=by_hand.stream("fit")):
        model.zero_grad()
        nn.functional.cross_entropy(model(x[2:]), y[2:]).backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.2 * p.grad
    for name, p in client.model.named_parameters():
        assert torch.allclose(p, model.get_parameter(name), rtol=1e-5, atol=1e-7)


def numbered(count: int) -> tuple[Tensor, Tensor]:
    return torch.arange(count).float(), torch.arange(count)


def test_batches_are_split_or_reused() -> None:
    assert [y.tolist() for _, y in _split(*numbered(5), 2, minimum=1)] == [[0, 1, 2], [3, 4]]
    assert [y.tolist() for _, y in _split(*numbered(4), 3, minimum=1)] == [[0, 1], [2], [3]]
    assert [y.tolist() for _, y in _split(*numbered(3), 2, minimum=2)] == [[0, 1, 2]] * 2  # BatchNorm needs two
    assert [y.tolist() for _, y in _split(*numbered(1), 3, minimum=1)] == [[0]] * 3


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("kind", ["FO", "HF"])
def test_clients_with_few_samples_take_part(linears: Any, norm: bool, kind: Any) -> None:
    for labels in ([0], [0, 1], [0, 1, 2, 0, 1]):
        client = linears(norm=norm).client("0", labels)
        before = weights_of(client.model)
        PerFedAvg(meta_gradient=kind).learn(client)
        trained = not torch.equal(before["head.weight"], client.model.head.get_parameter("weight"))
        assert trained == (not norm or len(labels) > 1)
        assert all(bool(torch.isfinite(p).all()) for p in client.model.parameters())


def test_the_adapted_model_is_one_step_from_the_servers(linears: Any) -> None:
    make = linears()
    client, by_hand = make.client("0", [0, 1, 2]), make.client("0", [0, 1, 2])
    PerFedAvg(alpha=0.3).adopt(client, Payload({"model": weights_of(make.model("server"))}))
    by_hand.load(weights_of(make.model("server")))
    by_hand.cross_entropy(by_hand.train.inputs.float() / 255, by_hand.train.labels).backward()
    for name, p in by_hand.model.named_parameters():
        assert torch.allclose(client.model.get_parameter(name), p - 0.3 * p.grad, rtol=1e-5, atol=1e-7)
    assert client.fits == []  # no training of the round's


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"alpha": 0.0}, "alpha is 0, which switches PerFedAvg off"),
        ({"alpha": -0.1}, "alpha is -0.1; expected a number of at least 0"),
        ({"beta": 0.0}, "beta is 0.0; expected a number above 0"),
        ({"delta": 0.0}, "delta is 0.0; expected a number above 0"),
        ({"eval_steps": -1}, "eval_steps is -1; expected a number of at least 0"),
    ],
)
def test_wrong_options_raise(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        PerFedAvg(**fields)
