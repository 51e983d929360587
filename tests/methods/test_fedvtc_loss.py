"""The loss L_tc of FedVTC by hand, and its standard deviations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.methods.fedvtc_clients import FAST, PAPER, WIDTH, bound_of, client, stream
from torch import Tensor, distributions

from polyfed.core import ClassTable
from polyfed.core.class_tables import Bound as MeansBound
from polyfed.core.payload import Payload
from polyfed.methods.fedvtc.method import FedVTC
from polyfed.methods.fedvtc.variational_bound import (
    MAX_DEVIATION,
    MIN_DEVIATION,
    StandardDeviation,
    VariationalBound,
    class_means,
    kl_divergence,
    reparameterise,
)


@settings(max_examples=25, deadline=None)
@given(width=st.integers(1, 40), batch=st.integers(1, 5), scale=st.floats(0.05, 4.0))
def test_kl_divergence_matches_torch_distributions(width: int, batch: int, scale: float) -> None:
    draw = stream(f"{width} {batch}")
    z, c = (torch.randn(batch, width, generator=draw, dtype=torch.float64) for _ in range(2))
    sigma = scale * (0.2 + torch.rand(width, generator=draw, dtype=torch.float64))
    ours = kl_divergence((z - c).square().sum(1), sigma)
    normals = distributions.Normal(z, sigma.expand_as(z)), distributions.Normal(c, torch.ones_like(c))
    expected = distributions.kl_divergence(*normals).sum(1)
    assert torch.allclose(ours, expected, rtol=1e-9, atol=1e-9)
    assert bool((ours > 0).all())
    exact = kl_divergence(torch.zeros(batch, dtype=torch.float64), torch.ones(width, dtype=torch.float64))
    assert bool((exact == 0).all())  # z = c and sigma = 1


def test_gradients_of_the_kl_divergence() -> None:
    z = torch.tensor([[0.5, -2.0, 3.0]], requires_grad=True)
    c, sigma = torch.tensor([[1.0, 1.0, 1.0]]), torch.tensor([0.5, 1.0, 4.0], requires_grad=True)
    kl_divergence((z - c).square().sum(1), sigma).sum().backward()  # type: ignore[no-untyped-call]
    assert z.grad is not None and sigma.grad is not None
    assert torch.allclose(z.grad, torch.tensor([[-0.5, -3.0, 2.0]]))  # z - c
    assert torch.allclose(sigma.grad, torch.tensor([-1.5, 0.0, 3.75]))  # sigma - 1 / sigma


def test_reparameterised_samples_have_the_right_moments_and_gradients() -> None:
    z, sigma = torch.tensor([2.0, -1.0]), torch.tensor([0.5, 3.0], requires_grad=True)
    v = reparameterise(z.expand(40000, 2), sigma, torch.randn(40000, 2, generator=stream()))
    assert torch.allclose(v.mean(0), z, atol=0.06)
    assert torch.allclose(v.std(0), sigma, rtol=0.02)
    eps = torch.randn(3, 2, generator=stream("few"))
    few = reparameterise(z.expand(3, 2), sigma, eps)
    few.square().sum().backward()  # type: ignore[no-untyped-call]
    assert sigma.grad is not None
    assert torch.allclose(sigma.grad, (eps * 2 * few.detach()).sum(0), rtol=1e-5)  # eps dL/dv


@settings(max_examples=25, deadline=None)
@given(start=st.floats(1e-6, 50), slope=st.floats(-1e6, 1e6), rate=st.floats(1e-3, 100))
def test_deviations_stay_positive_under_any_gradient(start: float, slope: float, rate: float) -> None:
    deviation = StandardDeviation(torch.tensor([start, 1.0]))
    optimizer = torch.optim.SGD(deviation.parameters(), lr=rate)
    for _ in range(4):
        optimizer.zero_grad()
        (slope * deviation()).sum().backward()
        optimizer.step()
    sigma = deviation().detach()
    assert bool((sigma >= 0.999 * MIN_DEVIATION).all()) and bool((sigma <= 1.001 * MAX_DEVIATION).all())


def small_bound(method: FedVTC, labels: list[int]) -> tuple[VariationalBound, Tensor, Tensor]:
    """Return L_tc, images and labels for images of two pixels and features of two numbers."""
    at = client(labels)
    bound = bound_of(method, at, torch.tensor([[0.0, 0.0], [1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]))
    return bound, torch.zeros(len(labels), 1, 1, 2), torch.tensor(labels)


def test_the_loss_by_hand() -> None:
    # sigma = (1, e): spread = (1 + e^2) - 2 - 2 = e^2 - 3. Prototypes: class 0 (0, 0), class 1 (1, 1).
    # Class 0: z = (1, 0), x' - x = (.5, .5), z' = (0, 2): |x'-x|^2 = .5, KL = (1 + e^2 - 3) / 2, |z'-c|^2 = 4.
    # Class 1: two samples with z = c; the first x' = x, the second x' - x = (1, 0); z' = (1, 1) = c.
    sigma = torch.tensor([1.0, float(np.e)])
    spread = float(np.e**2) - 3
    z = torch.tensor([[1.0, 0.0], [1.0, 1.0], [1.0, 1.0]])
    decoded = torch.tensor([[0.5, 0.5], [0.0, 0.0], [1.0, 0.0]]).reshape(3, 1, 1, 2)
    re_encoded = torch.tensor([[0.0, 2.0], [1.0, 1.0], [1.0, 1.0]])

    def total(**fields: Any) -> float:
        bound, x, y = small_bound(FedVTC(**fields), [0, 1, 1])
        return float(bound.loss(x, y, z, sigma, decoded, re_encoded))

    l_e, l_dm = (0.5 + 0.5) + (1 + spread) / 2 + spread / 2, 4.0  # sums of two class means
    assert total(**PAPER) == pytest.approx(l_e + 0.1 * l_dm, rel=1e-5)
    assert total(**PAPER, matching=0.0) == pytest.approx(l_e, rel=1e-5)
    # mean over two pixels and over two classes
    assert total(**{**PAPER, "reduction": "mean"}) == pytest.approx((l_e + 0.1 * l_dm) / 4, rel=1e-5)
    # weights: 20 on the squared errors (1 in all) and 0.5 on the squared distance (1 in class 0, 0 in class 1)
    weighted = total(**{**PAPER, "reconstruction": 20.0, "alignment": 0.5})
    assert weighted == pytest.approx(20 * 1.0 + (0.5 + spread) / 2 + spread / 2 + 0.1 * l_dm, rel=1e-5)
    # a prior of standard deviation e: sigma / noise = (1 / e, 1), so the spread is e^-2 + 1 - 2 + 2 = e^-2 + 1
    prior = total(**{**PAPER, "noise": float(np.e)})
    assert prior == pytest.approx(1.0 + 0.5 + float(np.e**-2) + 1 + 0.1 * l_dm, rel=1e-5)


def test_the_number_of_classes_in_a_batch_does_not_scale_the_mean_loss() -> None:
    # Two classes with the same error: their sum is twice as large as the loss of one class, their mean is equal.
    x = torch.zeros(2, 1, 1, 2)
    for reduction, ratio in (("sum", 2.0), ("mean", 1.0)):
        losses = []
        for labels in ([0, 0], [0, 2]):
            bound, _, y = small_bound(FedVTC(**{**PAPER, "reduction": reduction}), labels)
            losses.append(float(bound.loss(x, y, torch.zeros(2, 2), torch.ones(2), x + 1, None)))
        assert losses[1] / losses[0] == pytest.approx(ratio)


def test_the_matching_loss_is_0_only_at_the_prototype() -> None:
    bound, x, y = small_bound(FedVTC(**{**PAPER, "matching": 1.0}), [0, 1])
    z = sigma = torch.ones(2)
    at_prototype = bound.prototypes[y]
    assert float(bound.loss(x, y, at_prototype, sigma, x, at_prototype)) == 0.0
    off = at_prototype + torch.tensor([[0.0, 0.5], [0.0, 0.0]])
    assert float(bound.loss(x, y, at_prototype, z, x, off)) == pytest.approx(0.25)


def test_skip_unknown_leaves_classes_without_prototype_alone() -> None:
    at = client([0, 1])
    sigma = torch.ones(2)
    z = torch.full((2, 2), 3.0)
    x = torch.zeros(2, 1, 1, 2)
    losses = {}
    for skip in (False, True):
        method = FedVTC(**{**PAPER, "matching": 1.0, "skip_unknown": skip})
        table = ClassTable.of({0: torch.zeros(2)}, 2)
        bound = method.variational_bound(at, Payload({"prototypes": table, "deviation": sigma}))
        losses[skip] = float(bound.loss(x, torch.tensor([0, 1]), z, sigma, x, z))
    # KL = |3, 3|^2 / 2 = 9 and L_dm = 18 per class; both classes, or the known one alone
    assert losses == {False: 54.0, True: 27.0}


@settings(max_examples=25, deadline=None)
@given(labels=st.lists(st.integers(0, 3), min_size=2, max_size=10), times=st.integers(2, 4))
def test_duplicating_the_samples_of_a_class_does_not_change_the_loss(labels: list[int], times: int) -> None:
    values = torch.rand(len(labels), generator=stream("values"), dtype=torch.float64)
    y = torch.tensor(labels)
    duplicated = torch.cat([torch.arange(len(y)), (y == y[0]).nonzero()[:, 0].repeat(times - 1)])
    assert torch.allclose(class_means(values[duplicated], y[duplicated]), class_means(values, y))
    expected = torch.stack([values[y == c].mean() for c in sorted(set(labels))])
    assert torch.allclose(class_means(values, y), expected)


def test_classes_below_min_count_are_not_pulled_to_0() -> None:
    """Such a class is not sent, so it never gets a prototype. Other classes are treated as without privacy."""
    at = client([0] * 4 + [1] * 2)
    known = ClassTable.of({0: torch.ones(WIDTH)}, WIDTH).without_counts()
    msg = Payload({"prototypes": known, "deviation": torch.ones(WIDTH)})
    pulled, skipping = FedVTC(**FAST, skip_unknown=False), FedVTC(**FAST, skip_unknown=True)
    first_alone = [True, False, False, False]
    assert pulled.variational_bound(at, msg).regularised.tolist() == [True] * 4
    at.bound = MeansBound(1.0, 3)
    assert pulled.variational_bound(at, msg).regularised.tolist() == first_alone
    assert skipping.variational_bound(at, msg).regularised.tolist() == first_alone
    first = Payload({"prototypes": ClassTable.empty(WIDTH).without_counts(), "deviation": torch.ones(WIDTH)})
    assert pulled.variational_bound(at, first).regularised.tolist() == first_alone
