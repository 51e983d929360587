"""FedL2G: the gradient for its guiding vectors, what it leaves alone, what travels, and the controls."""

from __future__ import annotations

import copy
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call

from polyfed import catalogue, testing
from polyfed.core import rng
from polyfed.core.class_tables import ClassTable
from polyfed.core.client import weights_of
from polyfed.core.payload import Payload
from polyfed.errors import InputError
from polyfed.methods.fedl2g.guidance_gradient import Batch, guidance_gradient
from polyfed.methods.fedl2g.method import FedL2G
from polyfed.models import ModelSpec, SplitModel, build
from polyfed.models.catalogue import ARCHITECTURES
from polyfed.testing.rounds import InMemoryClients, Outcome, run_rounds
from polyfed.testing.toy_federation import CLASS_COUNTS, ToyFederation

Space = Literal["logit", "feature"]
SPACES: tuple[Space, ...] = ("logit", "feature")
# All but those that repeat the blocks of another at a greater depth, which take seconds each.
DEEP = {"resnet101", "resnet152", "vit-s-9", "vit-s-10", "vit-s-11", "vit-s-12", "vit-b-16", "vit-b-32"}
ZOO = [name for name in ARCHITECTURES if name not in DEEP]


class PlainHardsigmoid(nn.Module):
    """torch has no second derivative of its own one."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu6(x + 3) / 6


def made(name: str, side: int = 8, classes: int = 4) -> SplitModel:
    """In double precision; the big ones at an eighth of their width."""
    spec = ModelSpec(name, width=1.0 if name.startswith("tiny-") else 0.125)
    with rng.seeded("model", name):
        model = build(spec, shape=(1, side, side), classes=classes).double()
    for part in list(model.modules()):
        for child, module in part.named_children():
            if isinstance(module, nn.Hardsigmoid):
                setattr(part, child, PlainHardsigmoid())
    return model.train()


def batch(labels: list[int], side: int = 8, seed: str = "study") -> Batch:
    draw = rng.generator(seed)
    return torch.rand(len(labels), 1, side, side, generator=draw, dtype=torch.float64), torch.tensor(labels)


def vectors_for(model: SplitModel, space: Space) -> Tensor:
    width = model.classes if space == "logit" else model.feature_dim
    return torch.randn(model.classes, width, generator=rng.generator("v"), dtype=torch.float64)


class Both(nn.Module):
    def __init__(self, model: SplitModel, space: Space) -> None:
        super().__init__()
        self.model, self.space = model, space

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        f = self.model.features(x)
        z = self.model.head(f)
        return (z if self.space == "logit" else f), z


def without_dropout(model: SplitModel) -> SplitModel:
    """A copy whose BatchNorms go by the batch, and in which nothing is drawn."""
    other = copy.deepcopy(model).eval()
    for part in other.modules():
        if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d):
            part.train()
    return other


def quiz_loss(
    model: SplitModel, space: Space, v: Tensor, study: Batch, quiz: Batch, lr: float, smooth: float = 0
) -> Tensor:
    """The loss after the pseudo-step (equation 5) as a function of the vectors, by autograd through the step."""
    both = Both(without_dropout(model), space)
    theta: dict[str, Tensor] = dict(both.named_parameters())
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        guided, z = functional_call(both, theta, (study[0],))
        loss = F.cross_entropy(z, study[1], label_smoothing=smooth) + ((guided - v[study[1]]) ** 2).mean()
        step = torch.autograd.grad(loss, list(theta.values()), create_graph=True, materialize_grads=True)
        ahead = {name: p - lr * g for (name, p), g in zip(theta.items(), step, strict=True)}
        return F.cross_entropy(functional_call(both, ahead, (quiz[0],))[1], quiz[1])


def by_autograd(model: SplitModel, space: Space, v: Tensor, study: Batch, quiz: Batch, lr: float) -> Tensor:
    v = v.clone().requires_grad_()
    return torch.autograd.grad(quiz_loss(model, space, v, study, quiz, lr), v)[0]


def ours(model: SplitModel, space: Space, v: Tensor, study: Batch, quiz: Batch, lr: float, **options: Any) -> Tensor:
    return guidance_gradient(model, Both(model, space), v, study, quiz, lr=lr, **options)


STUDY, QUIZ = [0, 1, 2, 0, 1, 2, 0, 0], [0, 1, 3, 0, 1, 3]


@pytest.mark.parametrize("name", ZOO)
def test_equals_autograd_through_the_pseudo_step(name: str) -> None:
    # Test 1, for every architecture. Deep networks with BatchNorm on a few small images have gradients in the
    # hundreds, so that the tolerance is 1e-10 of the largest entry where that is above 1.
    side, lr = (8, 0.01) if name.startswith("tiny-") else (16, 0.001)
    side = max(side, ARCHITECTURES[name].smallest)
    model = made(name, side)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    study, quiz = batch(STUDY, side), batch(QUIZ, side, "quiz")
    for space in SPACES if name.startswith("tiny-") else SPACES[1:]:
        v = vectors_for(model, space)
        expected = by_autograd(model, space, v, study, quiz, lr)
        got = ours(model, space, v, study, quiz, lr)
        scale = float(expected.abs().max())
        assert scale > 1e-8
        assert float((got - expected).abs().max()) < 1e-10 * max(1.0, scale)
        assert torch.equal(got[3], torch.zeros_like(got[3]))  # test 3: class 3 is not in the study batch
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())  # test 5
    assert all(part.training for part in model.modules())


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("name", ["tiny-cnn", "tiny-resnet", "tiny-vit-2"])
def test_the_other_ways_agree(name: str, space: Space) -> None:
    model, study, quiz = made(name), batch(STUDY), batch(QUIZ, seed="quiz")
    v = vectors_for(model, space)
    exact = ours(model, space, v, study, quiz, 0.05)
    assert torch.allclose(ours(model, space, v, study, quiz, 0.05, way="double_backward"), exact, atol=1e-12, rtol=0)
    near = ours(model, space, v, study, quiz, 0.05, way="finite_diff")
    assert float((near - exact).norm() / exact.norm()) < 0.02  # some ReLU may change sides within the radius


@pytest.mark.parametrize("space", SPACES)
def test_equals_finite_differences_of_the_quiz_loss_in_every_entry(space: Space) -> None:  # test 2
    with rng.seeded("small"):
        model = SplitModel(
            nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Tanh()), nn.Linear(3, 2), feature_dim=3, classes=2
        ).double()
    study, quiz = batch([0, 1, 1], 2), batch([1, 0], 2, "quiz")
    v = vectors_for(model, space)
    got, h = ours(model, space, v, study, quiz, 0.3), 1e-5
    for at in range(v.numel()):
        moved = torch.zeros_like(v).flatten()
        moved[at] = h
        ends = [quiz_loss(model, space, v + s * moved.view_as(v), study, quiz, 0.3) for s in (1, -1)]
        assert float(got.flatten()[at]) == pytest.approx(float((ends[0] - ends[1]).detach()) / (2 * h), abs=1e-9)


def test_by_hand() -> None:
    # One weight: logits (w x, 0), two classes, one study sample (x = 1, y = 0), one quiz sample (x = 1, y = 0).
    # p = sigmoid(w). CE = -log p, so CE' = p - 1. MSE = ((w - v0)^2 + v1^2) / 2, derivative w - v0.
    # w' = w - lr (p - 1 + w - v0); pi for v0 is dCE/dw' * dw'/dv0 = (sigmoid(w') - 1) lr, and for v1 it is 0.
    class One(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            z = torch.stack([self.w * x, 0 * x], 1)
            return z, z

    model, lr = One(), 0.1
    v = torch.tensor([[2.0, 3.0], [5.0, 7.0]], dtype=torch.float64)
    one = (torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.int64))
    p = 1 / (1 + torch.exp(torch.tensor(-0.5, dtype=torch.float64)))
    ahead = 0.5 - lr * (p - 1 + 0.5 - 2.0)
    pi = (torch.sigmoid(ahead) - 1) * lr
    got = guidance_gradient(model, model, v, one, one, lr=lr)
    assert torch.allclose(got, torch.tensor([[float(pi), 0.0], [0.0, 0.0]], dtype=torch.float64), atol=1e-15)


def test_first_order_only(monkeypatch: pytest.MonkeyPatch) -> None:  # test 4
    graphs: list[bool] = []
    real = torch.autograd.grad

    def watched(*given: Any, **options: Any) -> Any:
        graphs.append(bool(options.get("create_graph")))
        return real(*given, **options)

    monkeypatch.setattr(torch.autograd, "grad", watched)
    model = made("tiny-resnet")
    for way, expected in (("jvp", [False] * 2), ("finite_diff", [False] * 2), ("double_backward", [True, False])):
        graphs.clear()
        ours(model, "logit", vectors_for(model, "logit"), batch(STUDY), batch(QUIZ, seed="quiz"), 0.05, way=way)
        assert graphs == expected


def test_the_curvature_of_the_task_loss_drops_out() -> None:  # test 4
    # Another study loss (label smoothing) leads to another theta'; pi is still 2 lr / (M B) sum J u.
    model, study, quiz, lr = made("tiny-cnn"), batch(STUDY), batch(QUIZ, seed="quiz"), 0.05
    v = vectors_for(model, "logit").requires_grad_()
    expected = torch.autograd.grad(quiz_loss(model, "logit", v, study, quiz, lr, smooth=0.3), v)[0]
    both = Both(without_dropout(model), "logit")
    theta = dict(both.named_parameters())
    guided, z = both(study[0])
    loss = F.cross_entropy(z, study[1], label_smoothing=0.3) + ((guided - v.detach()[study[1]]) ** 2).mean()
    step = torch.autograd.grad(loss, list(theta.values()))
    ahead = {n: (p - lr * g).detach().requires_grad_() for (n, p), g in zip(theta.items(), step, strict=True)}
    u = torch.autograd.grad(
        F.cross_entropy(functional_call(both, ahead, (quiz[0],))[1], quiz[1]), list(ahead.values())
    )

    def out(*weights: Tensor) -> Tensor:
        found: Tensor = functional_call(both, dict(zip(theta, weights, strict=True)), (study[0],))[0]
        return found

    change = torch.func.jvp(out, tuple(p.detach() for p in theta.values()), u)[1]
    got = torch.zeros_like(v).index_add(0, study[1], change) * (2 * lr / change.numel())
    assert torch.allclose(got, expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize("space", SPACES)
def test_doubling_the_guided_output_halves_every_entry(space: Space) -> None:  # test 6
    model, study, quiz = made("tiny-cnn"), batch(STUDY), batch(QUIZ, seed="quiz")
    v = vectors_for(model, space)

    def twice(x: Tensor) -> tuple[Tensor, Tensor]:
        guided, z = Both(model, space)(x)
        return torch.cat([guided, guided], 1), z

    # The same pull: two equal halves in a mean of squares over twice as many entries. So theta', and u, are the same.
    once = ours(model, space, v, study, quiz, 0.05)
    both = guidance_gradient(model, twice, torch.cat([v, v], 1), study, quiz, lr=0.05)
    assert torch.allclose(both, torch.cat([once, once], 1) / 2, atol=1e-14, rtol=1e-9)


def test_linear_in_the_learning_rate_with_u_fixed() -> None:  # test 6
    # With a tiny lr theta' is theta as far as u is concerned, so that u is the same for both.
    model, study = made("tiny-mlp"), batch(STUDY)
    v, quiz = vectors_for(model, "feature"), batch(QUIZ, seed="quiz")
    small = ours(model, "feature", v, study, quiz, 1e-9) / 1e-9
    smaller = ours(model, "feature", v, study, quiz, 5e-10) / 5e-10
    assert torch.allclose(small, smaller, rtol=1e-5, atol=1e-12)


@given(st.integers(0, 10_000), st.sampled_from(SPACES))
@settings(max_examples=8, deadline=None)
def test_a_small_step_of_the_vectors_lowers_the_quiz_loss(seed: int, space: Space) -> None:  # test 7
    model = made("tiny-mobile")
    study, quiz = batch(STUDY, seed=f"s{seed}"), batch(QUIZ, seed=f"q{seed}")
    v = vectors_for(model, space)
    pi = ours(model, space, v, study, quiz, 0.05)
    s = 1e-3 / float(pi.norm())
    at, after = (quiz_loss(model, space, w, study, quiz, 0.05).detach() for w in (v, v - s * pi))
    assert float(after) < float(at)
    # by as much as the gradient says
    assert float(at - after) == pytest.approx(s * float(pi.norm()) ** 2, rel=0.05)


def test_an_output_that_no_weight_reaches_gives_nothing() -> None:  # test 10
    model, study, quiz = made("tiny-cnn"), batch([0, 0, 1, 1]), batch(QUIZ, seed="quiz")
    alive = (study[1] == 1).double()[:, None]

    def dead_for_0(x: Tensor) -> tuple[Tensor, Tensor]:
        guided, z = Both(model, "feature")(x)
        return (guided * alive if len(x) == len(alive) else guided), z

    pi = guidance_gradient(model, dead_for_0, vectors_for(model, "feature"), study, quiz, lr=0.05)
    assert torch.equal(pi[0], torch.zeros_like(pi[0])) and float(pi[1].abs().sum()) > 0


def test_one_sample_and_shared_weights() -> None:
    # One study and one quiz sample: BatchNorm goes by its running statistics. And a weight held in two places.
    model = made("tiny-resnet")
    for study, quiz in ((batch([2]), batch(QUIZ, seed="q")), (batch(STUDY), batch([1], seed="q"))):
        v = vectors_for(model, "logit")
        exact = ours(model, "logit", v, study, quiz, 0.05)
        assert torch.allclose(ours(model, "logit", v, study, quiz, 0.05, way="double_backward"), exact, atol=1e-12)
        assert float(exact.norm()) > 0
    with rng.seeded("tied"):
        layer = nn.Linear(4, 4)
        tied = SplitModel(
            nn.Sequential(nn.Flatten(), layer, nn.Tanh(), layer), nn.Linear(4, 4), feature_dim=4, classes=4
        ).double()
    study, quiz = batch(STUDY, 2), batch(QUIZ, 2, "quiz")
    v = vectors_for(tied, "feature")
    expected = by_autograd(tied, "feature", v, study, quiz, 0.2)
    assert torch.allclose(ours(tied, "feature", v, study, quiz, 0.2), expected, atol=1e-14)


def test_dropout_is_off() -> None:
    model = made("tiny-cnn")
    loose = SplitModel(nn.Sequential(model.backbone, nn.Dropout(0.5)), model.head, feature_dim=64, classes=4).train()
    v, study, quiz = vectors_for(model, "logit"), batch(STUDY), batch(QUIZ, seed="quiz")
    assert torch.equal(ours(loose, "logit", v, study, quiz, 0.05), ours(model, "logit", v, study, quiz, 0.05))
    assert all(part.training for part in loose.modules())


# the method


def client_of(linears: Any, labels: list[int], **more: Any) -> Any:
    client = linears(**more).client("0", labels)
    client.round, client.step = 1, "train"
    return client


LABELS = [0, 1, 2] * 10


def random_vectors(width: int, classes: int = 3) -> Tensor:
    return torch.randn(classes, width, generator=rng.generator("vectors"))


@pytest.mark.parametrize("space", SPACES)
def test_one_training_step_by_hand(linears: Any, space: Space) -> None:
    # CE + weight * mean over samples and entries of (out - v_y)^2, on the study set as one batch.
    method = FedL2G(space=space, weight=2.0)
    mine, theirs = client_of(linears, LABELS), client_of(linears, LABELS)
    v = random_vectors(3)
    method.train(mine, Payload({"vectors": v}))
    study, _ = method.share(theirs)
    x, y = study.images.float() / 255, study.labels
    f = theirs.model.features(x)
    z = theirs.model.head(f)
    pull = sum(((z if space == "logit" else f)[i] - v[int(c)]).square().sum() for i, c in enumerate(y)) / (3 * len(y))
    (F.cross_entropy(z, y) + 2.0 * pull).backward()
    for name, p in theirs.model.named_parameters():
        assert torch.allclose(weights_of(mine.model)[name], p.detach() - 0.1 * p.grad, rtol=1e-4, atol=1e-6)


def test_in_feature_space_the_pull_does_not_move_the_head(linears: Any) -> None:  # test 11
    # One step from the same weights: the head's gradient is that of the cross-entropy alone, whatever the vectors.
    heads = []
    for v in (random_vectors(3), 100 * random_vectors(3)):
        client = client_of(linears, LABELS)
        FedL2G(space="feature", clip_norm=None).train(client, Payload({"vectors": v}))
        heads.append(weights_of(client.model.head))
    assert all(torch.equal(heads[0][name], heads[1][name]) for name in heads[0])


def test_feedback_is_the_gradient_of_the_drawn_batch(linears: Any) -> None:
    for space in SPACES:
        method, client = FedL2G(space=space), client_of(linears, LABELS, settings={"batch_size": 4, "lr": 0.1})
        client.step = "quiz_feedback"
        v = random_vectors(3)
        got = method.quiz_feedback(client, Payload({"vectors": v}))["gradient"]
        study, quiz = method.share(client)
        (drawn,) = method.study_batches_of(client, study)
        asked = quiz.images.double() / 255, quiz.labels
        expected = by_autograd(client.model.double(), space, v.double(), (drawn[0].double(), drawn[1]), asked, 0.1)
        assert isinstance(got, ClassTable)
        assert got.classes.tolist() == sorted(set(drawn[1].tolist()))  # test 3
        assert torch.allclose(got.values.double(), expected[got.classes], rtol=1e-4, atol=1e-8)


def test_feedback_leaves_the_client_as_it_was(linears: Any) -> None:  # test 5
    client = client_of(linears, LABELS, norm=True)
    before, held = weights_of(client.model), [*client.model.parameters(), *client.model.buffers()]
    for way in ("jvp", "double_backward", "finite_diff"):
        FedL2G(gradient=way).quiz_feedback(client, Payload({"vectors": random_vectors(3)}))
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights_of(client.model).items())
    assert all(a is b for a, b in zip(held, [*client.model.parameters(), *client.model.buffers()], strict=True))
    assert all(p.grad is None for p in client.model.parameters())
    assert all(part.training for part in client.model.modules())
    assert client.state == {} and client.fits == []


@given(st.integers(1, 60), st.integers(1, 25), st.integers(1, 15))
@settings(max_examples=25, deadline=None)
def test_study_and_quiz_share_the_training_data(n: int, size: int, wanted: int) -> None:  # test 13
    from tests.methods.conftest import Linears

    client = Linears(pixels=4, settings={"batch_size": size}).client("0", [i % 3 for i in range(n)])
    method = FedL2G(quiz=wanted)
    study, quiz = method.share(client)
    assert len(study) + len(quiz) == n
    assert len(quiz) == (wanted if n >= wanted + size else max(1, n // 10))
    rows = torch.cat([study.images, quiz.images]).flatten(1)
    assert sorted(rows.tolist()) == sorted(client.train.images.flatten(1).tolist())
    client.round, client.step = 7, "another"
    assert torch.equal(method.share(client)[1].images, quiz.images)  # in every round


def vectors_after(method: FedL2G, rounds: int = 1, **options: Any) -> Outcome:
    with ToyFederation(FedL2G, {}) as toy:
        return toy.run(toy.config(rounds=rounds), method=method, **options).checked()


def test_warm_up_moves_the_vectors_and_no_model() -> None:  # test 8
    with ToyFederation(FedL2G, {}) as toy:
        config = toy.config(rounds=3)
        initial = {name: weights_of(toy.federation(config).make_client(name).model) for name in "01234"}
        warm = toy.run(config, method=FedL2G(warmup=3)).checked()
        after = toy.run(config, method=FedL2G(warmup=2)).checked()
        for name, start in initial.items():
            still, moved = warm.client(name).weights("model"), after.client(name).weights("model")
            assert all(torch.equal(still[key], start[key]) for key in start)
            assert not all(torch.equal(moved[key], start[key]) for key in start)
    assert not torch.equal(warm.server["vectors"], warm.server["start"])  # type: ignore[arg-type]
    assert [stats.task_loss() for stats in warm.round_stats] == [None] * 3


@pytest.mark.parametrize(("rounds", "longest"), [(2, 0), (10, 1), (500, 50), (1000, 50)])
def test_warm_up_is_a_tenth_of_the_rounds_and_at_most_50(rounds: int, longest: int, linears: Any) -> None:
    from polyfed.core.server import Server

    called: list[tuple[str, ...]] = []

    class Listening:
        def call(self, *steps: Any, **given: Any) -> dict[str, Payload]:
            called.append(tuple(step.__name__ for step in steps))
            return {}

    makers = linears().several([0, 1])
    server = Server(InMemoryClients(FedL2G(), makers).roster(), 3, rounds, 0, lambda spec: makers[0]().model)
    FedL2G().init(server)
    for server.round in (max(1, longest), longest + 1):
        FedL2G().round(server, Listening())  # type: ignore[arg-type]
    assert called == [("quiz_feedback",) if longest else ("train", "quiz_feedback"), ("train", "quiz_feedback")]


def test_rows_are_averaged_over_those_who_sent_them() -> None:  # test 9
    def row(c: int, *values: float) -> ClassTable:
        return ClassTable.of({c: torch.tensor(values)}, 2)

    v = torch.zeros(3, 2)
    tables = [row(0, 1.0, 2.0), row(0, 3.0, 6.0), row(2, 5.0, 5.0), ClassTable.empty(2).without_counts()]
    owners, senders = FedL2G().mean_gradient(v, tables)
    assert owners.tolist() == [[2.0, 4.0], [0.0, 0.0], [5.0, 5.0]] and senders.tolist() == [2, 0, 1]
    everyone, _ = FedL2G(average="participants").mean_gradient(v, tables)
    assert everyone.tolist() == [[1.0, 2.0], [0.0, 0.0], [1.25, 1.25]]
    backwards, _ = FedL2G().mean_gradient(v, tables[::-1])
    assert torch.equal(backwards, owners)  # test 12
    clipped, _ = FedL2G(server_clip_norm=0.5).mean_gradient(v, tables)
    assert torch.allclose(clipped, owners * 0.5 / owners.norm())
    nothing, none = FedL2G().mean_gradient(v, [])
    assert not nothing.any() and not none.any()


def test_the_server_steps_against_the_gradient() -> None:
    # One round from equal models: doubling the rate doubles the move; the invariant scale multiplies it by M = 4.
    moves = []
    options: list[dict[str, Any]] = [{}, {"server_lr": 0.2}, {"scale_invariant": True}]
    for fields in options:
        server = Payload(vectors_after(FedL2G(warmup=1, **fields)).server)
        moves.append(server.tensor("vectors") - server.tensor("start"))
    assert float(moves[0].norm()) > 0
    assert torch.allclose(moves[1], 2 * moves[0], atol=1e-6)
    assert torch.allclose(moves[2], 4 * moves[0], atol=1e-6)


@pytest.mark.parametrize("space", SPACES)
def test_bytes_and_no_more_than_the_prototype_methods(space: Space) -> None:  # test 12
    rival = {"logit": "feddistill", "feature": "fedproto"}[space]
    width, clients = {"logit": 4, "feature": 64}[space], len(CLASS_COUNTS)
    with ToyFederation(FedL2G, {}) as toy:
        config = toy.config(rounds=3)
        method = FedL2G(space=space)
        outcome = toy.run(config, method=method).checked()
        made = toy.federation(config, method)
        theirs = toy.run(config, method=catalogue.make({"name": rival})).checked()
        for number, stats in enumerate(outcome.round_stats, 1):
            rows = 0
            for name in made.names:
                client = made.make_client(name)
                client.seed, client.round, client.step = made.seed, number, "quiz_feedback"
                (drawn,) = method.study_batches_of(client, method.share(client)[0])
                rows += len(set(drawn[1].tolist()))
            assert stats.up == {"gradient": 4 * rows * width}
            assert stats.down == {"vectors": 4 * clients * 4 * width}
    for mine, other in zip(outcome.round_stats[1:], theirs.round_stats[1:], strict=True):
        assert sum(mine.up.values()) < sum(other.up.values())
        assert sum(mine.down.values()) <= sum(other.down.values())


@pytest.mark.parametrize("space", SPACES)
def test_without_weight_it_is_local_training_on_the_study_set(linears: Any, space: Space) -> None:  # test 14
    method = FedL2G(space=space, weight=0.0, allow_degenerate=True)
    mine, theirs = client_of(linears, LABELS), client_of(linears, LABELS)
    method.train(mine, Payload({"vectors": random_vectors(3)}))
    theirs.fit(samples=method.share(theirs)[0])
    assert all(torch.equal(t, weights_of(theirs.model)[n]) for n, t in weights_of(mine.model).items())


def test_a_single_sample_is_trained_on_and_nothing_is_sent(linears: Any) -> None:
    mine, theirs = client_of(linears, [1]), client_of(linears, [1])
    msg = Payload({"vectors": random_vectors(3)})
    FedL2G().train(mine, msg)
    theirs.fit()
    assert all(torch.equal(t, weights_of(theirs.model)[n]) for n, t in weights_of(mine.model).items())
    sent = FedL2G().quiz_feedback(mine, msg)["gradient"]
    assert isinstance(sent, ClassTable) and len(sent) == 0


def test_a_diverged_model_sends_nothing_and_is_counted(linears: Any) -> None:
    def broken() -> Any:
        client = linears().client("1", LABELS)
        with torch.no_grad():
            client.model.head.bias.fill_(float("inf"))
        return client

    makers = [lambda: linears().client("0", LABELS), broken]
    outcome = run_rounds(InMemoryClients(FedL2G(warmup=1), makers)).checked()
    assert isinstance(outcome.server["vectors"], Tensor) and bool(torch.isfinite(outcome.server["vectors"]).all())
    assert outcome.server["updates"].tolist() == [1, 1, 1]  # type: ignore[union-attr]


def test_controls_never_learn_and_send_nothing_up() -> None:
    learned = vectors_after(FedL2G(), 2).server
    for guidance in ("frozen-random", "zero"):
        outcome = vectors_after(FedL2G(guidance=guidance), 2)
        start = learned["start"] if guidance == "frozen-random" else torch.zeros(4, 4)
        assert torch.equal(outcome.server["vectors"], start)  # type: ignore[arg-type]
        assert [stats.up for stats in outcome.round_stats] == [{}, {}]
        assert all(stats.task_loss() is not None for stats in outcome.round_stats)


def test_several_study_batches_are_averaged(linears: Any) -> None:
    client = client_of(linears, LABELS, settings={"batch_size": 4, "lr": 0.1})
    v, method = random_vectors(3), FedL2G(study_batches=3)
    got = method.quiz_feedback(client, Payload({"vectors": v}))["gradient"]
    study, quiz = method.share(client)
    drawn = method.study_batches_of(client, study)
    asked = quiz.images.double() / 255, quiz.labels
    model = client.model.double()
    every = [by_autograd(model, "logit", v.double(), (x.double(), y), asked, 0.1) for x, y in drawn]
    assert isinstance(got, ClassTable) and len(drawn) == 3
    assert torch.allclose(got.values.double(), torch.stack(every).mean(0)[got.classes], rtol=1e-4, atol=1e-8)


def test_vectors_that_nobody_has_taught_do_not_pull(linears: Any) -> None:
    mine, theirs = client_of(linears, LABELS), client_of(linears, LABELS)
    down = {"vectors": random_vectors(3), "learned": torch.zeros(3)}
    FedL2G(mask_unlearned=True).train(mine, Payload(down))
    theirs.fit(samples=FedL2G().share(theirs)[0])
    assert all(torch.equal(t, weights_of(theirs.model)[n]) for n, t in weights_of(mine.model).items())
    FedL2G(mask_unlearned=True).train(mine, Payload({**down, "learned": torch.tensor([0.0, 2.0, 0.0])}))
    theirs.fit(samples=FedL2G().share(theirs)[0])
    assert not torch.equal(mine.model.head.weight, theirs.model.head.weight)
    vectors_after(FedL2G(mask_unlearned=True), 2)


def test_training_is_clipped_unless_the_config_says_how(linears: Any) -> None:
    far = Payload({"vectors": 1e6 * random_vectors(3)})
    for own, config, expected in ((0.5, None, 0.5), (0.5, 0.25, 0.25)):
        client = client_of(linears, LABELS, settings={"clip_norm": config})
        before = weights_of(client.model)
        FedL2G(clip_norm=own).train(client, far)
        moved = torch.cat([(t - before[n]).flatten() for n, t in weights_of(client.model).items()])
        assert float(moved.norm()) == pytest.approx(0.1 * expected, rel=1e-3)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"weight": 0.0}, "method.weight is 0, which switches FedL2G off"),
        ({"server_lr": 0.0}, "method.server_lr is 0, which switches FedL2G off"),
        ({"quiz": 0}, "method.quiz is 0; expected a number of at least 1"),
        ({"warmup": -1}, "method.warmup is -1; expected a number of at least 0"),
        ({"study_batches": 0}, "method.study_batches is 0; expected a number of at least 1"),
    ],
)
def test_refusals(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        catalogue.make({"name": "fedl2g", **fields})


def test_features_of_different_widths_need_logits() -> None:
    models = {"group": ["tiny-cnn", {"name": "tiny-cnn", "feature_dim": 32}]}
    with ToyFederation(FedL2G, {"space": "feature"}) as toy:
        settings_ = toy.settings(CLASS_COUNTS[:2], models=models)
        with pytest.raises(InputError, match=r"space: feature needs one feature width, .*would work: space: logit"):
            toy.experiment(settings_)
    with ToyFederation(FedL2G, {}) as toy:
        toy.experiment(toy.settings(CLASS_COUNTS[:2], models=models))


def test_a_run_records_and_keeps_the_vectors() -> None:
    from safetensors.torch import load_file

    from polyfed.runs.folder import RunFolder

    with ToyFederation(FedL2G, {}) as toy:
        folder = toy.new_folder()
        toy.experiment(toy.settings(), folder)
        events = [event for event in RunFolder(folder).events() if event.get("kind") == "guidance"]
        kept = load_file(str(next(folder.glob("artifacts/guiding_vectors-*.safetensors"))))
    assert [event["round"] for event in events] == [1, 2]
    assert all(event["moved"] > 0 and event["silent"] == [] and len(event["rows"]) == 4 for event in events)
    assert kept["vectors"].shape == (4, 4) and kept["classes"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("check", ["stopped_and_resumed", "order_of_clients_is_irrelevant"])
def test_features_pass_the_telling_checks_too(check: str) -> None:
    testing.run_check(check, FedL2G, {"space": "feature", "mask_unlearned": True, "study_batches": 2})


def test_unlearned_vectors_can_be_masked_from_the_first_round_on() -> None:
    # In the warm-up only the vectors learn, and what says which of them have learnt comes down all the same.
    with ToyFederation(FedL2G, {"mask_unlearned": True, "warmup": 1}) as toy:
        outcome = toy.run()
    assert not any(stats.failures for stats in outcome.round_stats)


@pytest.mark.parametrize("name", ["clip_norm", "server_clip_norm", "server_lr", "weight"])
def test_signs_that_would_turn_descent_into_ascent_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"method.{name} is -1"):
        FedL2G(**{name: -1.0})  # type: ignore[arg-type]
