"""FedProx: the proximal term, its gradient, its limits, and errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from polyfed.core.client import weights_of
from polyfed.core.payload import Payload
from polyfed.errors import InputError
from polyfed.methods.fedavg import FedAvg
from polyfed.methods.fedprox import FedProx, squared_distance
from polyfed.testing.rounds import InMemoryClients, run_rounds
from polyfed.testing.toy_federation import ToyFederation

LABELS = ([0, 1, 2], [0, 0, 1, 2, 2])


def test_mu_0_is_bit_identical_to_fedavg() -> None:
    with ToyFederation(FedProx, {"mu": 0.0, "allow_degenerate": True}) as toy:
        fedavg = toy.run(method=FedAvg()).checked().hash
        assert toy.run().checked().hash == fedavg
        assert toy.run(method=FedProx()).checked().hash != fedavg


def test_the_gradient_of_the_term_is_mu_times_the_offset() -> None:
    # (mu/2) ||e||^2 at theta - theta^t = e = (0.5, -1, 2 | 3): value (mu/2)(0.25 + 1 + 4 + 9), slope mu e
    start = [torch.tensor([1.0, 2.0, 3.0]), torch.tensor([[4.0]])]
    offset = [torch.tensor([0.5, -1.0, 2.0]), torch.tensor([[3.0]])]
    theta = [(s + e).requires_grad_() for s, e in zip(start, offset, strict=True)]
    term = 0.4 / 2 * squared_distance(theta, start)
    assert term.item() == pytest.approx(0.2 * 14.25)
    for slope, e in zip(torch.autograd.grad(term, theta), offset, strict=True):
        assert torch.allclose(slope, 0.4 * e)


def test_two_steps_by_hand(linears: Any) -> None:
    # At theta^t the proximal gradient is 0, so the first step is FedAvg. The second adds mu (theta - theta^t).
    make = linears(settings={"epochs": 2})
    client, plain = make.client("0", LABELS[0]), make.client("0", LABELS[0])
    start = weights_of(make.model())
    FedProx(mu=0.5).learn(client)
    model = plain.model
    for _ in range(2):
        model.zero_grad()
        x, y = plain.train.inputs.float() / 255, plain.train.labels
        torch.nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for name, p in model.named_parameters():
                p -= 0.1 * (p.grad + 0.5 * (p - start[name]))
    for name, p in client.model.named_parameters():
        assert torch.allclose(p, model.get_parameter(name), rtol=1e-5, atol=1e-7)


def test_a_larger_mu_keeps_clients_nearer(linears: Any) -> None:
    make = linears(settings={"epochs": 20})
    apart = []
    for mu in (0.01, 0.1, 1.0, 5.0):
        client = make.client("0", LABELS[0])
        start = [p.detach().clone() for p in client.model.parameters()]
        FedProx(mu=mu).train(client, Payload({"model": weights_of(client.model)}))
        apart.append(squared_distance(client.model.parameters(), start).item())
    assert apart == sorted(apart, reverse=True) and apart[-1] < apart[0] / 2


def test_clients_can_have_different_numbers_of_epochs(linears: Any) -> None:
    makers = linears().several(*LABELS)
    outcome = run_rounds(InMemoryClients(FedProx(epochs=[0, 3]), makers)).checked()
    lazy, busy = (outcome.client(k).weights("model") for k in "01")
    assert all(torch.equal(t, lazy[n]) for n, t in weights_of(linears().model()).items())
    assert not torch.equal(busy["head.weight"], lazy["head.weight"])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mu": 0.0}, "mu is 0, which switches FedProx off"),
        ({"mu": -1.0}, "mu is -1.0; expected a number of at least 0"),
        ({"epochs": [1, -1]}, "epochs is -1; expected a number of at least 0"),
        ({"server_lr": 0.0}, "server_lr is 0.0; expected a number above 0"),
        ({"upload_noise": -0.5}, "upload_noise is -0.5"),
    ],
)
def test_wrong_options_raise(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        FedProx(**fields)


def test_a_wrong_number_of_epochs_raises(linears: Any) -> None:
    with pytest.raises(InputError, match="3 entries for 2 clients"):
        run_rounds(InMemoryClients(FedProx(epochs=[1, 1, 1]), linears().several(*LABELS)))
