"""FedL2G's gradient for the guiding vectors: exact, first order only, and without side effects."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.methods.fedl2g_reference import (
    SPACES,
    GuidedOutputs,
    Space,
    double_model,
    gradient_by_autograd,
    quiz_loss,
    run,
)
from tests.model_families import by_family
from torch import Tensor, nn

from polyfed.core import rng
from polyfed.methods.fedl2g.guidance_gradient import Batch, guidance_gradient
from polyfed.models import SplitModel
from polyfed.models.catalogue import ARCHITECTURES

# Without architectures that repeat the blocks of another one: they take seconds each.
DEEP = {"resnet101", "resnet152", "vit-s-9", "vit-s-10", "vit-s-11", "vit-s-12", "vit-b-16", "vit-b-32"}
MODELS = [name for name, kind in ARCHITECTURES.items() if kind.takes == "picture" and name not in DEEP]


def batch(labels: list[int], side: int = 8, seed: str = "study") -> Batch:
    draw = rng.generator(seed)
    return torch.rand(len(labels), 1, side, side, generator=draw, dtype=torch.float64), torch.tensor(labels)


def vectors_for(model: SplitModel, space: Space) -> Tensor:
    width = model.classes if space == "logit" else model.feature_dim
    return torch.randn(model.classes, width, generator=rng.generator("v"), dtype=torch.float64)


def gradient(
    model: SplitModel, space: Space, v: Tensor, study: Batch, quiz: Batch, lr: float, **options: Any
) -> Tensor:
    return guidance_gradient(model, GuidedOutputs(model, space), v, study, quiz, lr=lr, **options)


STUDY, QUIZ = [0, 1, 2, 0, 1, 2, 0, 0], [0, 1, 3, 0, 1, 3]


@pytest.mark.parametrize("name", by_family(MODELS))
def test_equals_autograd_through_the_pseudo_step(name: str) -> None:
    # Deep networks with BatchNorm have gradients in the hundreds on a few small images. The tolerance is therefore
    # relative to the largest entry where that is above 1.
    side, lr = (8, 0.01) if name.startswith("tiny-") else (16, 0.001)
    side = max(side, ARCHITECTURES[name].smallest)
    model = double_model(name, side)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    study, quiz = batch(STUDY, side), batch(QUIZ, side, "quiz")
    for space in SPACES if name.startswith("tiny-") else SPACES[1:]:
        v = vectors_for(model, space)
        expected = gradient_by_autograd(model, space, v, study, quiz, lr)
        computed = gradient(model, space, v, study, quiz, lr)
        scale = float(expected.abs().max())
        assert scale > 1e-8
        assert float((computed - expected).abs().max()) < 1e-10 * max(1.0, scale)
        assert torch.equal(computed[3], torch.zeros_like(computed[3]))  # class 3 is not in the study batch
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("name", ["tiny-cnn", "tiny-resnet", "tiny-vit-2"])
def test_finite_differences_agree(name: str, space: Space) -> None:
    model, study, quiz = double_model(name), batch(STUDY), batch(QUIZ, seed="quiz")
    v = vectors_for(model, space)
    exact = gradient(model, space, v, study, quiz, 0.05)
    approximate = gradient(model, space, v, study, quiz, 0.05, product="finite_diff")
    assert float((approximate - exact).norm() / exact.norm()) < 0.02  # some ReLU may switch within the radius


@pytest.mark.parametrize("space", SPACES)
def test_every_entry_equals_a_finite_difference_of_the_quiz_loss(space: Space) -> None:
    with rng.seeded("small"):
        model = SplitModel(
            nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Tanh()), nn.Linear(3, 2), feature_dim=3, classes=2
        ).double()
    study, quiz = batch([0, 1, 1], 2), batch([1, 0], 2, "quiz")
    v = vectors_for(model, space)
    computed, h = gradient(model, space, v, study, quiz, 0.3), 1e-5
    for at in range(v.numel()):
        moved = torch.zeros_like(v).flatten()
        moved[at] = h
        ends = [quiz_loss(model, space, v + s * moved.view_as(v), study, quiz, 0.3) for s in (1, -1)]
        assert float(computed.flatten()[at]) == pytest.approx(float((ends[0] - ends[1]).detach()) / (2 * h), abs=1e-9)


def test_the_gradient_by_hand() -> None:
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
    computed = guidance_gradient(model, model, v, one, one, lr=lr)
    assert torch.allclose(computed, torch.tensor([[float(pi), 0.0], [0.0, 0.0]], dtype=torch.float64), atol=1e-15)


def test_no_second_order_graph_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: list[bool] = []
    real = torch.autograd.grad

    def recorded(*given: Any, **options: Any) -> Any:
        graphs.append(bool(options.get("create_graph")))
        return real(*given, **options)

    monkeypatch.setattr(torch.autograd, "grad", recorded)
    model = double_model("tiny-resnet")
    v, study, quiz = vectors_for(model, "logit"), batch(STUDY), batch(QUIZ, seed="quiz")
    for product in ("jvp", "finite_diff"):
        graphs.clear()
        gradient(model, "logit", v, study, quiz, 0.05, product=product)
        assert graphs == [False, False]


def test_the_curvature_of_the_task_loss_does_not_matter() -> None:
    # Another study loss (label smoothing) leads to another theta'; pi is still 2 lr / (M B) sum J u.
    model, study, quiz, lr = double_model("tiny-cnn"), batch(STUDY), batch(QUIZ, seed="quiz"), 0.05
    v = vectors_for(model, "logit").requires_grad_()
    expected = torch.autograd.grad(quiz_loss(model, "logit", v, study, quiz, lr, smooth=0.3), v)[0]
    outputs = GuidedOutputs(model, "logit")
    theta: dict[str, Tensor] = dict(outputs.named_parameters())
    guided, z = run(outputs, theta, study[0])
    loss = F.cross_entropy(z, study[1], label_smoothing=0.3) + ((guided - v.detach()[study[1]]) ** 2).mean()
    step = torch.autograd.grad(loss, list(theta.values()))
    ahead = {n: (p - lr * g).detach().requires_grad_() for (n, p), g in zip(theta.items(), step, strict=True)}
    u = torch.autograd.grad(F.cross_entropy(run(outputs, ahead, quiz[0])[1], quiz[1]), list(ahead.values()))

    def out(*weights: Tensor) -> Tensor:
        return run(outputs, dict(zip(theta, weights, strict=True)), study[0])[0]

    change = torch.func.jvp(out, tuple(p.detach() for p in theta.values()), u)[1]
    computed = torch.zeros_like(v).index_add(0, study[1], change) * (2 * lr / change.numel())
    assert torch.allclose(computed, expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize("space", SPACES)
def test_doubling_the_guided_output_halves_every_entry(space: Space) -> None:
    model, study, quiz = double_model("tiny-cnn"), batch(STUDY), batch(QUIZ, seed="quiz")
    v = vectors_for(model, space)

    def twice(x: Tensor) -> tuple[Tensor, Tensor]:
        guided, z = GuidedOutputs(model, space)(x)
        return torch.cat([guided, guided], 1), z

    # The same pull: two equal halves in a mean of squares over twice as many entries. So theta', and u, are the same.
    once = gradient(model, space, v, study, quiz, 0.05)
    both = guidance_gradient(model, twice, torch.cat([v, v], 1), study, quiz, lr=0.05)
    assert torch.allclose(both, torch.cat([once, once], 1) / 2, atol=1e-14, rtol=1e-9)


def test_linear_in_the_learning_rate_with_u_fixed() -> None:
    # With a tiny lr theta' is theta as far as u is concerned, so that u is the same for both.
    model, study = double_model("tiny-mlp"), batch(STUDY)
    v, quiz = vectors_for(model, "feature"), batch(QUIZ, seed="quiz")
    small = gradient(model, "feature", v, study, quiz, 1e-9) / 1e-9
    smaller = gradient(model, "feature", v, study, quiz, 5e-10) / 5e-10
    assert torch.allclose(small, smaller, rtol=1e-5, atol=1e-12)


@given(st.integers(0, 10_000), st.sampled_from(SPACES))
@settings(max_examples=8, deadline=None)
def test_a_small_step_of_the_vectors_lowers_the_quiz_loss(seed: int, space: Space) -> None:
    model = double_model("tiny-mobile")
    study, quiz = batch(STUDY, seed=f"s{seed}"), batch(QUIZ, seed=f"q{seed}")
    v = vectors_for(model, space)
    pi = gradient(model, space, v, study, quiz, 0.05)
    s = 1e-3 / float(pi.norm())
    at, after = (quiz_loss(model, space, w, study, quiz, 0.05).detach() for w in (v, v - s * pi))
    assert float(after) < float(at)
    # by as much as the gradient says
    assert float(at - after) == pytest.approx(s * float(pi.norm()) ** 2, rel=0.05)


def test_an_output_that_does_not_depend_on_weights_has_gradient_0() -> None:
    model, study, quiz = double_model("tiny-cnn"), batch([0, 0, 1, 1]), batch(QUIZ, seed="quiz")
    alive = (study[1] == 1).double()[:, None]

    def dead_for_0(x: Tensor) -> tuple[Tensor, Tensor]:
        guided, z = GuidedOutputs(model, "feature")(x)
        return (guided * alive if len(x) == len(alive) else guided), z

    pi = guidance_gradient(model, dead_for_0, vectors_for(model, "feature"), study, quiz, lr=0.05)
    assert torch.equal(pi[0], torch.zeros_like(pi[0])) and float(pi[1].abs().sum()) > 0


def test_single_samples_and_shared_weights() -> None:
    # With one study or quiz sample BatchNorm uses its running statistics. A shared weight belongs to two layers.
    model = double_model("tiny-resnet")
    for study, quiz in ((batch([2]), batch(QUIZ, seed="q")), (batch(STUDY), batch([1], seed="q"))):
        v = vectors_for(model, "logit")
        exact = gradient(model, "logit", v, study, quiz, 0.05)
        expected = gradient_by_autograd(model, "logit", v, study, quiz, 0.05)
        assert torch.allclose(exact, expected, atol=1e-12)
        assert float(exact.norm()) > 0
    with rng.seeded("tied"):
        layer = nn.Linear(4, 4)
        tied = SplitModel(
            nn.Sequential(nn.Flatten(), layer, nn.Tanh(), layer), nn.Linear(4, 4), feature_dim=4, classes=4
        ).double()
    study, quiz = batch(STUDY, 2), batch(QUIZ, 2, "quiz")
    v = vectors_for(tied, "feature")
    expected = gradient_by_autograd(tied, "feature", v, study, quiz, 0.2)
    assert torch.allclose(gradient(tied, "feature", v, study, quiz, 0.2), expected, atol=1e-14)


def test_dropout_is_off() -> None:
    model = double_model("tiny-cnn")
    with_dropout = SplitModel(
        nn.Sequential(model.backbone, nn.Dropout(0.5)), model.head, feature_dim=64, classes=4
    ).train()
    v, study, quiz = vectors_for(model, "logit"), batch(STUDY), batch(QUIZ, seed="quiz")
    assert torch.equal(
        gradient(with_dropout, "logit", v, study, quiz, 0.05), gradient(model, "logit", v, study, quiz, 0.05)
    )
    assert all(module.training for module in with_dropout.modules())
