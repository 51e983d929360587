"""FedTGP: the margin, training at the server, the client's loss, and message sizes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from polyfed import catalogue, testing
from polyfed.core import Payload, Server
from polyfed.core.class_tables import ClassTable
from polyfed.core.client import weights_of
from polyfed.core.client_profile import Profile
from polyfed.core.rng import generator
from polyfed.errors import InputError
from polyfed.methods.fedtgp import FedTGP, distances, margin_loss
from polyfed.methods.local import Local
from polyfed.testing.rounds import InMemoryClients, run_rounds
from polyfed.testing.toy_federation import CLASS_COUNTS, ToyFederation

LABELS = [0, 0, 1, 2, 2, 2]
SHARED = ([0, 0, 1], [0, 1, 1], [0, 2])
NOTHING = ClassTable.empty(3).without_counts()


def table(rows: dict[int, list[float]], width: int = 3) -> ClassTable:
    return ClassTable.of({label: torch.tensor(row) for label, row in rows.items()}, width)


def ready(client: Any) -> Any:
    client.round, client.step = 1, "train"
    return client


def server_for(method: FedTGP, features: int, classes: int) -> Server:
    def build(spec: str) -> Any:
        raise AssertionError("the server has no use for a model")

    server = Server((Profile("0", "any", (), (), features, classes, 1),), classes, 1, 0, build)
    method.init(server)
    return server


# the margin


def test_margin_of_three_means_on_a_line() -> None:
    # at 0, 1 and 5 the nearest others are 1, 1 and 4 away; the farthest pair is 5 apart
    means = torch.tensor([[0.0], [1.0], [5.0]])
    assert FedTGP().margin_between(means) == pytest.approx(4)
    assert FedTGP(margin="pair-max").margin_between(means) == pytest.approx(5)
    assert FedTGP(largest_margin=3.0).margin_between(means) == 3
    assert FedTGP(margin="pair-max", largest_margin=4.5).margin_between(means) == 4.5


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.floats(-50, 50, width=32), min_size=2, max_size=2), max_size=6))
def test_margin_by_brute_force(means: list[list[float]]) -> None:
    near, far = 0.0, 0.0
    for i, a in enumerate(means):
        others = [math.dist(a, b) for j, b in enumerate(means) if j != i]
        if others:
            near, far = max(near, min(others)), max(far, *others)
    if len(means) < 2:
        near = far = math.inf
    given_means = torch.tensor(means).reshape(-1, 2)
    assert FedTGP().margin_between(given_means) == pytest.approx(min(near, 100), rel=1e-4, abs=1e-4)
    assert FedTGP(margin="pair-max").margin_between(given_means) == pytest.approx(min(far, 100), rel=1e-4, abs=1e-4)


# the server's loss


def test_margin_loss_by_hand() -> None:
    # From (0, 0) to T_0 = (3, 4) it is 5, to T_1 = (0, 1) it is 1. With class 0 true and a margin of 2 the scores are
    # -7 and -1, so the loss is log(1 + e^6); with class 1 true they are -5 and -3, and it is log(1 + e^-2).
    prototypes = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
    v = torch.zeros(1, 2)
    assert float(margin_loss(v, torch.tensor([0]), prototypes, 2.0)) == pytest.approx(math.log(1 + math.exp(6)))
    assert float(margin_loss(v, torch.tensor([1]), prototypes, 2.0)) == pytest.approx(math.log(1 + math.exp(-2)))
    both = margin_loss(v.repeat(2, 1), torch.tensor([0, 1]), prototypes, 2.0)
    assert float(both) == pytest.approx((math.log(1 + math.exp(6)) + math.log(1 + math.exp(-2))) / 2)


def test_distance_zero_has_a_finite_gradient() -> None:
    v = torch.tensor([[1e3, -1e3], [0.5, 0.25]])
    prototypes = v.clone().requires_grad_()
    margin_loss(v, torch.tensor([0, 1]), prototypes, 1.0).backward()  # type: ignore[no-untyped-call]
    assert prototypes.grad is not None and bool(torch.isfinite(prototypes.grad).all())
    assert bool((distances(v, v).diagonal() <= 1e-6).all())


def separable() -> list[ClassTable]:
    """Five clients whose means of four classes lie around four corners, all but one of them without one class."""
    corners = 3 * torch.eye(4, 16)
    stream = generator("separable")
    reports = []
    for k in range(5):
        around = corners + 0.3 * torch.randn(4, 16, generator=stream)
        reports.append(table({c: around[c].tolist() for c in range(4) if c != k}, width=16))
    return reports


def test_trained_prototypes_separate_the_reported_means() -> None:
    method = FedTGP()
    server = server_for(method, features=16, classes=4)
    reports = separable()
    v, c = torch.cat([t.values for t in reports]), torch.cat([t.classes for t in reports])
    losses = []
    for number in (1, 2, 3):
        server.round = number
        method.train_prototypes(server, reports)
        losses.append(float(margin_loss(v, c, server.memory.table("prototypes").values, 3.0)))
    assert losses[0] > losses[1] > losses[2]
    prototypes = server.memory.table("prototypes").values
    assert torch.equal(distances(v, prototypes).argmin(1), c)


@pytest.mark.parametrize("reports", [[table({1: [1.0, 2.0, 3.0]})], [table({1: [1.0, 2.0, 3.0]})] * 3])
def test_one_reported_class_gives_finite_prototypes_of_all(reports: list[ClassTable]) -> None:
    method = FedTGP()
    server = server_for(method, features=3, classes=4)
    method.train_prototypes(server, reports)
    prototypes = server.memory.table("prototypes")
    assert prototypes.classes.tolist() == [0, 1, 2, 3] and bool(torch.isfinite(prototypes.values).all())


def test_without_reports_nothing_is_trained() -> None:
    method = FedTGP()
    server = server_for(method, features=3, classes=4)
    before = {name: tensor.clone() for name, tensor in server.memory.weights("trainable").items()}
    method.train_prototypes(server, [NOTHING, NOTHING])
    assert len(server.memory.table("prototypes")) == 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in server.memory.weights("trainable").items())


def test_prototype_training_continues_from_the_last_round(linears: Any) -> None:
    makers = linears().several(*SHARED, seeds=["a", "b", "c"])
    method = FedTGP(server_epochs=1)
    weights = [run_rounds(InMemoryClients(method, makers), rounds).checked().server["trainable"] for rounds in (1, 2)]
    assert isinstance(weights[0], dict) and isinstance(weights[1], dict)
    step = max(float((weights[1][n] - weights[0][n]).abs().max()) for n in weights[0])
    assert 0 < step < 0.2  # one epoch of one batch moves little; anew from other weights it would be far


# clients


def test_one_step_by_hand(linears: Any) -> None:
    # CE + lambda * mean over samples of known classes of |f - T_y|^2 / d, with d = 3 features and lambda 10.
    rows = {0: [0.5, -0.5, 0.0], 1: [0.0, 0.0, 1.0], 2: [1.0, 1.0, 1.0]}
    ours, theirs = ready(linears().client("0", LABELS)), linears().client("0", LABELS)
    FedTGP().train(ours, Payload({"prototypes": table(rows)}))
    x, y = theirs.train.inputs.float() / 255, theirs.train.labels
    f = theirs.model.features(x)
    pulls = [((f[i] - torch.tensor(rows[int(c)])) ** 2).sum() / 3 for i, c in enumerate(y)]
    (F.cross_entropy(theirs.model.head(f), y) + 10 * torch.stack(pulls).mean()).backward()  # type: ignore[no-untyped-call]
    for name, p in theirs.model.named_parameters():
        assert torch.allclose(weights_of(ours.model)[name], p.detach() - 0.1 * p.grad, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("stale", [False, True])
def test_means_are_of_the_trained_model_unless_the_fault_is_reproduced(linears: Any, stale: bool) -> None:
    client = ready(linears(norm=True).client("0", LABELS))
    untrained = linears(norm=True).client("0", LABELS).model.eval()
    received = FedTGP(stale_prototypes=stale).train(client, Payload({"prototypes": NOTHING}))["prototypes"]
    assert isinstance(received, ClassTable) and received.counts is not None and received.counts.tolist() == [2, 1, 3]
    means = []
    for model in (client.model.eval(), untrained):
        f = model.features(client.train.inputs.float() / 255).detach()
        means.append(torch.stack([f[client.train.labels == c].mean(0) for c in range(3)]))
    trained, before = means
    assert not torch.allclose(trained, before, atol=1e-3)
    assert torch.allclose(received.values, before if stale else trained, rtol=1e-5, atol=1e-6)


def test_a_stale_pass_changes_only_the_message(linears: Any) -> None:
    right, wrong = ready(linears(norm=True).client("0", LABELS)), ready(linears(norm=True).client("0", LABELS))
    FedTGP().train(right, Payload({"prototypes": NOTHING}))
    FedTGP(stale_prototypes=True).train(wrong, Payload({"prototypes": NOTHING}))
    a, b = weights_of(right.model), weights_of(wrong.model)
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_prediction_is_the_nearest_prototype_by_brute_force(linears: Any) -> None:
    client = linears(classes=4).client("0", [0, 1, 2, 3] * 8)
    x = client.train.inputs.float() / 255
    with torch.no_grad():
        f, head = client.model.features(x), client.model(x)
        assert torch.equal(FedTGP().predict(client, x), head)  # before any round
        client.state["new prototypes"] = NOTHING
        assert torch.equal(FedTGP().predict(client, x), head)  # no prototypes have been trained yet
        prototypes = {c: f[at].tolist() for c, at in enumerate((0, 5, 10, 15))}
        client.state["new prototypes"] = table(prototypes)
        received = FedTGP().predict(client, x).argmax(1).tolist()
        nearest = [min(prototypes, key=lambda c: math.dist(feature, prototypes[c])) for feature in f.tolist()]
        assert received == nearest and len(set(received)) > 1
        assert torch.equal(FedTGP(predict_with="head").predict(client, x), head)
        assert torch.equal(FedTGP().also_predict()["head"](client, x), head)


def test_without_guidance_models_equal_local_training() -> None:
    with ToyFederation(FedTGP, {"guidance": 0.0, "allow_degenerate": True, "server_epochs": 1}) as toy:
        guided, local = toy.run().checked(), toy.run(method=Local()).checked()
        for k in "01234":
            mine, theirs = guided.client(k).weights("model"), local.client(k).weights("model")
            assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_round_one_is_local_training_and_round_two_is_not() -> None:
    with ToyFederation(FedTGP, {}) as toy:
        for rounds in (1, 2):
            config = toy.config(rounds=rounds)
            mine = toy.run(config).checked().client("0").weights("model")
            theirs = toy.run(config, method=Local()).checked().client("0").weights("model")
            assert all(torch.equal(mine[name], theirs[name]) for name in theirs) == (rounds == 1)


def test_only_participants_send_and_receive(linears: Any) -> None:
    makers = linears().several(*SHARED, seeds=["a", "b", "c"])
    outcome = run_rounds(InMemoryClients(FedTGP(server_epochs=2), makers), 2, selected=lambda n: ("0", "1")).checked()
    prototypes = outcome.server["prototypes"]
    assert isinstance(prototypes, ClassTable) and prototypes.classes.tolist() == [0, 1, 2]  # class 2 has one as well
    assert "2" not in outcome.ledger.digests


def test_bytes() -> None:
    # up: m_k (d + 1) numbers, the counts are the 1. down: C d numbers; none before the first round.
    features, classes = 64, 4
    pairs = sum(count > 0 for share in CLASS_COUNTS for count in share)
    with ToyFederation(FedTGP, {"server_epochs": 1}) as toy:
        first, second = toy.run().checked().round_stats
    assert first.up == second.up == {"prototypes": 4 * pairs * (features + 1)}
    assert (first.down, second.down) == (
        {"prototypes": 0},
        {"prototypes": 4 * len(CLASS_COUNTS) * classes * features},
    )


@pytest.mark.parametrize("field", ["guidance", "server_lr", "server_epochs"])
def test_a_weight_of_zero_requires_allow_degenerate(field: str) -> None:
    nothing: dict[str, Any] = {"guidance": 0.0, "server_lr": 0.0, "server_epochs": 0}
    with pytest.raises(InputError, match=rf"^method.{field} is 0, which switches FedTGP off"):
        catalogue.make({"name": "fedtgp", field: nothing[field]})
    catalogue.make({"name": "fedtgp", field: nothing[field], "allow_degenerate": True})


@pytest.mark.parametrize(
    "check", ["independent_of_client_order", "client_with_one_sample", "evaluation_leaves_no_trace"]
)
def test_options_pass_the_battery(check: str) -> None:
    fields = {"margin": "pair-max", "stale_prototypes": True, "min_class_count": 3, "server_epochs": 5}
    testing.run_check(check, FedTGP, fields)
