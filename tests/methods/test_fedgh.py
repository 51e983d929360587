"""FedGH: head training at the server, the reported means, and message sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from polyfed import catalogue, testing
from polyfed.core import Payload, Server
from polyfed.core.class_tables import ClassTable
from polyfed.core.client import weights_of
from polyfed.core.client_profile import Profile, layout
from polyfed.core.rng import generator, seeded
from polyfed.errors import InputError
from polyfed.methods.fedgh import FedGH
from polyfed.models.split import SplitModel
from polyfed.testing.rounds import InMemoryClients, run_rounds
from polyfed.testing.toy_federation import CLASS_COUNTS, ToyFederation

LABELS = ([0, 0, 1], [0, 1, 1], [0, 2])


def table(rows: dict[int, list[float]]) -> ClassTable:
    return ClassTable.of({label: torch.tensor(row) for label, row in rows.items()}, 2)


def server_with(head: nn.Linear) -> Server:
    """Return a server with the given head, for clients with two features and three classes."""
    model = SplitModel(nn.Flatten(), head, feature_dim=2, classes=3)
    profile = Profile("0", "linear", layout(model), layout(head), 2, 3, 1)
    return Server((profile,), 3, 1, 0, lambda spec: model, {"head": weights_of(head)})


def zero_head() -> nn.Linear:
    with seeded("head"):
        head = nn.Linear(2, 3)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


PAIRS = [table({0: [1.0, 2.0]}), table({1: [3.0, -1.0]})]


def test_one_step_of_the_server_by_hand() -> None:
    # A head of zeros gives every class 1/3. The gradient of row j is the mean over pairs of (1/3 - [j = c]) v:
    #   row 0: ((-2/3)(1, 2) + (1/3)(3, -1)) / 2 = (1/6, -5/6)      bias (-2/3 + 1/3) / 2 = -1/6
    #   row 1: ((1/3)(1, 2) + (-2/3)(3, -1)) / 2 = (-5/6, 2/3)      bias -1/6
    #   row 2: ((1/3)(1, 2) + (1/3)(3, -1)) / 2  = (2/3, 1/6)       bias 1/3
    # and a step of 0.3 goes against it. Class 2 was not reported, and its row is pushed down all the same.
    server = server_with(zero_head())
    FedGH(server_lr=0.3, server_batch=10, server_weight_decay=0.0).train_head(server, PAIRS)
    head = server.memory.weights("head")
    assert torch.allclose(head["weight"], torch.tensor([[-0.05, 0.25], [0.25, -0.2], [-0.2, -0.05]]), atol=1e-6)
    assert torch.allclose(head["bias"], torch.tensor([0.05, 0.05, -0.1]), atol=1e-6)


def test_the_servers_optimiser_is_that_of_the_authors() -> None:
    # One pair per step, twice: v = (1, 2) of class 0. SGD with momentum 0.9 and weight decay 0.001 by hand, from 0:
    # m <- 0.9 m + g + 0.001 w and w <- w - 0.1 m.
    server, v = server_with(zero_head()), torch.tensor([1.0, 2.0])
    FedGH(server_lr=0.1, server_epochs=2).train_head(server, [table({0: v.tolist()})])
    weight, bias = torch.zeros(3, 2), torch.zeros(3)
    momenta = [torch.zeros(3, 2), torch.zeros(3)]
    for _ in range(2):
        slope = (weight @ v + bias).softmax(0) - torch.tensor([1.0, 0.0, 0.0])
        for at, (parameter, gradient) in enumerate(((weight, slope[:, None] * v), (bias, slope))):
            momenta[at] = 0.9 * momenta[at] + gradient + 0.001 * parameter
        weight, bias = weight - 0.1 * momenta[0], bias - 0.1 * momenta[1]
    head = server.memory.weights("head")
    assert torch.allclose(head["weight"], weight, atol=1e-6) and torch.allclose(head["bias"], bias, atol=1e-6)


def test_the_servers_gradient_is_clipped() -> None:
    # The gradient of a head of zeros has the norm |v| sqrt(6)/3 with bias sqrt(6)/3: a limit of 0.1 scales it.
    server = server_with(zero_head())
    FedGH(server_lr=1.0, server_clip_norm=0.1).train_head(server, [table({0: [300.0, 400.0]})])
    moved = torch.cat([tensor.flatten() for tensor in server.memory.weights("head").values()])
    assert float(moved.norm()) == pytest.approx(0.1, rel=1e-4)


def test_one_masked_step_by_hand() -> None:
    # Over the two reported classes the head of zeros gives 1/2 each, and row 2 has no gradient:
    #   row 0: ((-1/2)(1, 2) + (1/2)(3, -1)) / 2 = (1/2, -3/4), row 1 its opposite, biases 0
    server = server_with(zero_head())
    FedGH(server_lr=0.3, server_batch=10, server_weight_decay=0.0, mask_missing=True).train_head(server, PAIRS)
    head = server.memory.weights("head")
    assert torch.allclose(head["weight"], torch.tensor([[-0.15, 0.225], [0.15, -0.225], [0.0, 0.0]]), atol=1e-6)
    assert torch.allclose(head["bias"], torch.zeros(3), atol=1e-6)


def test_masked_with_one_class_there_is_no_gradient() -> None:
    # softmax over one class is 1, so CE and its gradient are 0
    server = server_with(zero_head())
    FedGH(server_lr=0.3, mask_missing=True).train_head(server, [table({1: [3.0, -1.0]})])
    assert not server.memory.weights("head")["weight"].any()
    FedGH(server_lr=0.3).train_head(server, [table({1: [3.0, -1.0]})])
    assert server.memory.weights("head")["weight"].all()


numbers = st.floats(-2, 2, width=32)
reports = st.lists(
    st.dictionaries(st.integers(0, 2), st.lists(numbers, min_size=2, max_size=2), max_size=3), min_size=1, max_size=4
)


@settings(max_examples=25, deadline=None)
@given(reports, st.booleans())
def test_a_small_step_lowers_the_loss_on_reported_means(rows: list[dict[int, list[float]]], mask: bool) -> None:
    with seeded("random head"):
        head = nn.Linear(2, 3)
    server = server_with(head)
    before = {name: tensor.clone() for name, tensor in server.memory.weights("head").items()}
    tables = [table(r) for r in rows]
    FedGH(server_lr=1e-2, server_batch=100, server_weight_decay=0.0, mask_missing=mask).train_head(server, tables)
    after = server.memory.weights("head")
    v, c = torch.cat([t.values for t in tables]), torch.cat([t.classes for t in tables])
    if len(c) == 0:
        assert all(torch.equal(before[name], after[name]) for name in before)
        return
    missing = [k for k in range(3) if k not in c.tolist()] if mask else []

    def loss(weights: dict[str, torch.Tensor]) -> float:
        z = (v @ weights["weight"].T + weights["bias"]).double()
        z[:, missing] = -torch.inf
        return float(F.cross_entropy(z, c))

    if len(missing) < 2:
        assert loss(after) < loss(before)
    for k in missing:
        assert torch.equal(before["weight"][k], after["weight"][k])


@pytest.mark.parametrize("batch", [1, 7, 512])
def test_means_are_over_all_samples_whatever_the_batch(linears: Any, batch: int) -> None:
    # 600 samples are more than one batch of the clean pass, and the batches are unequal
    labels = [int(k) for k in torch.randint(0, 3, (600,), generator=generator("labels"))]
    client = linears(settings={"epochs": 0, "batch_size": batch}).client("0", labels)
    received = FedGH().train(client, Payload({"head": weights_of(client.model.head)}))["means"]
    f = client.model.features(client.train.inputs.float() / 255).detach().double().numpy()
    assert isinstance(received, ClassTable) and received.counts is not None
    for c in range(3):
        mine = np.array(labels) == c
        assert np.allclose(received.values[c].numpy(), f[mine].mean(0), rtol=1e-5, atol=1e-6)
        assert received.count(c) == mine.sum()


def test_clients_start_from_the_servers_head_and_send_means_of_the_trained_model(linears: Any) -> None:
    client, head = linears(norm=True).client("0", LABELS[0], seed="own"), linears().model("server").head
    client.round, client.step = 1, "train"
    received = FedGH().train(client, Payload({"head": weights_of(head)}))["means"]
    theirs = linears(norm=True).client("0", LABELS[0], seed="own")
    theirs.round, theirs.step = 1, "train"
    theirs.load(weights_of(head), into=theirs.model.head)
    theirs.fit()
    mine, expected = weights_of(client.model), weights_of(theirs.model)
    assert all(torch.equal(mine[name], expected[name]) for name in expected)
    theirs.model.eval()  # running statistics, not those of the batch
    f = theirs.model.features(theirs.train.inputs.float() / 255).detach()
    assert isinstance(received, ClassTable) and received.classes.tolist() == [0, 1]
    assert torch.allclose(received.values[0], f[:2].mean(0), atol=1e-6) and torch.allclose(
        received.values[1], f[2], atol=1e-6
    )


def test_the_head_is_trained_unless_the_fault_is_reproduced(linears: Any) -> None:
    makers = linears().several(*LABELS, seeds=["a", "b", "c"])
    initial = weights_of(linears().model("a").head)
    right = run_rounds(InMemoryClients(FedGH(), makers), 2).checked().server["head"]
    wrong = run_rounds(InMemoryClients(FedGH(untrained_head=True), makers), 2).checked().server["head"]
    assert isinstance(right, dict) and isinstance(wrong, dict)
    assert all(torch.equal(wrong[name], tensor) for name, tensor in initial.items())
    assert not any(torch.allclose(right[name], tensor) for name, tensor in initial.items())


def test_the_head_is_trained_on_participants_only(linears: Any) -> None:
    # Clients 0 and 1 have classes 0 and 1, so with the mask the row of class 2 stays; client 2 keeps all it had.
    makers = linears().several(*LABELS, seeds=["a", "b", "c"])
    outcome = run_rounds(
        InMemoryClients(FedGH(mask_missing=True, server_weight_decay=0.0), makers), 2, selected=lambda n: ("0", "1")
    ).checked()
    head, initial = outcome.server["head"], weights_of(linears().model("a").head)
    assert isinstance(head, dict)
    assert torch.equal(head["weight"][2], initial["weight"][2])
    assert not torch.allclose(head["weight"][:2], initial["weight"][:2])
    assert "2" not in outcome.ledger.digests


def test_bytes() -> None:
    # up: m_k (d + 1) numbers, the counts are the 1. down: #h = C d + C.
    features, classes = 64, 4
    pairs = sum(count > 0 for share in CLASS_COUNTS for count in share)
    with ToyFederation(FedGH, {}) as toy:
        round_stats = toy.run().checked().round_stats
    for stats in round_stats:
        assert stats.up == {"means": 4 * pairs * (features + 1)}
        assert stats.down == {"head": 4 * len(CLASS_COUNTS) * (classes * features + classes)}


def test_small_classes_are_not_sent() -> None:
    with ToyFederation(FedGH, {"min_class_count": 5}) as toy:
        first = toy.run().checked().round_stats[0]
    assert first.up == {"means": 4 * sum(count >= 5 for share in CLASS_COUNTS for count in share) * 65}


@pytest.mark.parametrize("field", ["server_lr", "server_epochs"])
def test_no_server_training_requires_allow_degenerate(field: str) -> None:
    nothing: dict[str, Any] = {"server_lr": 0.0, "server_epochs": 0}
    with pytest.raises(InputError, match=rf"^method.{field} is 0, which switches FedGH off"):
        catalogue.make({"name": "fedgh", field: nothing[field]})
    catalogue.make({"name": "fedgh", field: nothing[field], "allow_degenerate": True})


@pytest.mark.parametrize(
    "check", ["independent_of_client_order", "client_with_one_class", "failing_clients_tolerated"]
)
def test_the_masked_variant_passes_the_battery(check: str) -> None:
    testing.run_check(check, FedGH, {"mask_missing": True, "min_class_count": 3, "server_epochs": 3})
