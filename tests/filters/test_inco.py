"""The rules of InCo on two updates: properties of the theorem, of the algorithm box and of the released code."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from polyfed.errors import InputError
from polyfed.filters.inco import InCo
from polyfed.filters.inco.rules import RULES

SHAPES = st.sampled_from([(7,), (3, 5), (2, 3, 3, 3), (4, 2, 1, 1)])
few = settings(max_examples=15, deadline=None)


def random_update(seed: int, shape: tuple[int, ...], scale: float = 1.0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


@st.composite
def updates(draw: Callable[[Any], Any], shapes: Any = SHAPES) -> tuple[Tensor, Tensor]:
    """Draw a deep and a shallow update of one shape, with different norms and directions."""
    shape = draw(shapes)
    scales = st.sampled_from([1e-4, 0.01, 1.0, 30.0])
    one, other = (
        random_update(draw(st.integers(0, 999)), shape, draw(scales)),
        random_update(draw(st.integers(0, 999)), shape),
    )
    towards = draw(st.sampled_from([-1.0, 0.0, 1.0]))  # also nearly parallel and nearly opposed
    return one, (other + 3 * towards * one / one.norm()) * draw(scales)


def mixed(g_k: Tensor, g_0: Tensor, rule: str, *, normalise: bool, **fields: Any) -> Tensor:
    return InCo(rule=rule, normalise=normalise, **{"granularity": "tensor", **fields}).mix(g_k, g_0)[0]  # type: ignore[arg-type]


def inner(a: Tensor, b: Tensor) -> float:
    return float((a * b).sum())


def lengths(g_k: Tensor, g_0: Tensor) -> tuple[float, float, float, float]:
    """Return n0, nk, the cosine between the two, and the mean norm s."""
    n_0, n_k = float(g_0.norm()), float(g_k.norm())
    return n_0, n_k, inner(g_0, g_k) / (n_0 * n_k), (n_0 + n_k) / 2


# the formulas of the table, written out once more


def by_the_table(g_k: Tensor, g_0: Tensor, rule: str, normalise: bool) -> Tensor:
    n_0, n_k, c, s = lengths(g_k, g_0)
    alpha, beta = inner(g_0, g_0), inner(g_0, g_k)
    h_0, h_k = g_0 / n_0, g_k / n_k
    if rule == "off":
        return g_k
    if rule == "released":  # with 1e-7 in every denominator
        coefficient = min(abs(beta) / (alpha + 1e-7), 5)
        if not normalise:
            return g_k + coefficient * g_0
        return ((g_k / (n_k + 1e-7) + coefficient * g_0 / (n_0 + 1e-7)) * s).clamp(-0.1, 0.1)
    if normalise:
        by = {"abs": abs(c), "theorem": -min(0, c), "algorithm1": -c, "sum": 1}
        return (h_k + by[rule] * h_0) * s
    ratio = beta / alpha
    by = {"abs": abs(ratio), "theorem": -min(0, ratio), "algorithm1": -ratio, "sum": 1}
    return g_k + by[rule] * g_0


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("rule", RULES)
@given(pair=updates())
@few
def test_every_rule_is_its_row_of_the_table(rule: str, normalise: bool, pair: tuple[Tensor, Tensor]) -> None:
    expected = by_the_table(*pair, rule, normalise)
    result = mixed(*pair, rule, normalise=normalise)
    assert torch.allclose(result, expected, rtol=1e-9, atol=1e-12 * lengths(*pair)[3])


def test_the_rules_by_hand() -> None:
    # g_0 = (2, 0), g_k = (-3, 4): alpha 4, beta -6, theta -1.5, n0 2, nk 5, c -0.6, s 3.5, h_k = (-0.6, 0.8).
    g_0, g_k = torch.tensor([2.0, 0.0]).double(), torch.tensor([-3.0, 4.0]).double()
    expected = {
        ("theorem", False): [0.0, 4.0],  # -3 + 1.5 * 2
        ("theorem", True): [0.0, 2.8],  # 0.8 * 3.5
        ("algorithm1", True): [0.0, 2.8],
        ("abs", True): [0.0, 2.8],
        ("sum", True): [1.4, 2.8],  # (-0.6 + 1) * 3.5
        ("sum", False): [-1.0, 4.0],
        ("off", True): [-3.0, 4.0],
    }
    for (rule, normalise), values in expected.items():
        assert torch.allclose(mixed(g_k, g_0, rule, normalise=normalise), torch.tensor(values).double()), rule
    # the released code: theta 1.5 from raw tensors on normalised ones, (-0.6 + 1.5) * 3.5 = 3.15, then the limit
    free = mixed(g_k, g_0, "released", normalise=True, max_entry=100.0, epsilon=0.0)
    assert torch.allclose(free, torch.tensor([3.15, 2.8]).double())
    assert torch.equal(mixed(g_k, g_0, "released", normalise=True), torch.full((2,), 0.1, dtype=torch.float64))
    # where both point in the same direction, the three sources differ: keep, remove, add
    g_k = torch.tensor([3.0, 4.0]).double()
    for rule, values in {"theorem": [3.0, 4.0], "algorithm1": [0.0, 4.0], "abs": [6.0, 4.0]}.items():
        assert torch.allclose(mixed(g_k, g_0, rule, normalise=False), torch.tensor(values).double())


def test_the_released_rule_has_the_numbers_of_the_authors_formula() -> None:
    # Per kernel: theta = min(|beta| / (alpha + e), 5) and (g_k / (n_k + e) + theta g_0 / (n_0 + e)) (n_0 + n_k) / 2,
    # entries limited to 0.1, with e = 1e-7 in float32. First kernel: n_0 = 0.02, n_k = 0.05, alpha = 4e-4,
    # beta = -6e-4, theta = 6e-4 / 4.001e-4 = 1.4996251, so that the first entry is
    # (-0.03 / 0.0500001 + 1.4996251 * 0.02 / 0.0200001) * 0.035 = 0.0314867. Without e it would be 0.0315.
    # Second: theta = 3e-4 / 1.1e-6 is limited to 5, and both entries to 0.1. Third, with the same direction:
    # n_0 = 0.001, n_k = 0.005, theta = 3e-6 / 1.1e-6 = 2.7272727, (0.003 / 0.0050001 + 2.7272727 * 0.001 / 0.0010001)
    # * 0.003 = 0.0099810 and (-0.004 / 0.0050001) * 0.003 = -0.0024000.
    g_0 = torch.tensor([[0.02, 0.0], [0.001, 0.0], [0.001, 0.0]]).reshape(3, 1, 1, 2)
    g_k = torch.tensor([[-0.03, 0.04], [0.3, 0.4], [0.003, -0.004]]).reshape(3, 1, 1, 2)
    expected = torch.tensor([[0.0314867, 0.0279999], [0.1, 0.1], [0.0099810, -0.0024000]]).reshape(3, 1, 1, 2)
    assert torch.allclose(InCo(rule="released").mix(g_k, g_0).update, expected, rtol=0, atol=1e-7)


# the theorem


@given(updates())
@few
def test_theorem_removes_conflicts_and_changes_nothing_else(pair: tuple[Tensor, Tensor]) -> None:
    g_k, g_0 = pair
    n_0, n_k, c, _ = lengths(g_k, g_0)
    result = mixed(g_k, g_0, "theorem", normalise=False)
    assert inner(result, g_0) >= -1e-6 * n_0 * n_k
    if c < 0:
        assert abs(inner(result, g_0)) <= 1e-9 * n_0 * n_k
    else:
        assert torch.equal(result, g_k)


@given(updates(), st.integers(0, 999))
@few
def test_theorem_gives_the_nearest_allowed_update(pair: tuple[Tensor, Tensor], seed: int) -> None:
    g_k, g_0 = pair
    result = mixed(g_k, g_0, "theorem", normalise=False)
    distance = float((result - g_k).norm())
    for number in range(20):
        other = result + random_update(seed + number, tuple(g_k.shape), float(g_k.norm()) / 3)
        if inner(other, g_0) >= 0:
            assert float((other - g_k).norm()) >= distance * (1 - 1e-9)
    again = mixed(result, g_0, "theorem", normalise=False)
    assert torch.allclose(again, result, rtol=0, atol=1e-12 * float(g_k.norm()))  # idempotent


@pytest.mark.parametrize("rule", ["abs", "theorem", "algorithm1"])
@given(pair=updates(), scale=st.sampled_from([1e-3, 0.5, 7.0, 1e4]))
@few
def test_the_length_of_the_shallow_update_does_not_matter_without_normalisation(
    rule: str, pair: tuple[Tensor, Tensor], scale: float
) -> None:
    g_k, g_0 = pair
    one, other = (mixed(g_k, shallow, rule, normalise=False) for shallow in (g_0, g_0 * scale))
    assert torch.allclose(one, other, rtol=1e-9, atol=1e-12 * float(g_k.norm()))


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("rule", ["abs", "theorem", "algorithm1", "sum", "off"])
@given(pair=updates(st.just((6,))), seed=st.integers(0, 99))
@few
def test_rotating_both_rotates_the_result(rule: str, normalise: bool, pair: tuple[Tensor, Tensor], seed: int) -> None:
    turn = torch.linalg.qr(random_update(seed, (6, 6))).Q
    then = turn @ mixed(*pair, rule, normalise=normalise)
    first = mixed(turn @ pair[0], turn @ pair[1], rule, normalise=normalise)
    assert torch.allclose(first, then, rtol=0, atol=1e-9 * lengths(*pair)[3])


# the other rules


@pytest.mark.parametrize("normalise", [True, False])
@given(pair=updates())
@few
def test_algorithm_1_removes_the_shallow_direction(normalise: bool, pair: tuple[Tensor, Tensor]) -> None:
    n_0, _, _, s = lengths(*pair)
    result = mixed(*pair, "algorithm1", normalise=normalise)
    assert abs(inner(result, pair[1])) <= 1e-9 * n_0 * max(s, float(pair[0].norm()))


@given(updates())
@few
def test_the_absolute_rule_and_the_released_code_along_the_shallow_direction(pair: tuple[Tensor, Tensor]) -> None:
    g_k, g_0 = pair
    n_0, n_k, c, s = lengths(g_k, g_0)
    h_0 = g_0 / n_0
    along = inner(mixed(g_k, g_0, "abs", normalise=True), h_0)
    assert math.isclose(along, s * (c + abs(c)), rel_tol=1e-7, abs_tol=1e-9 * s)
    if c < 0:
        free = mixed(g_k, g_0, "released", normalise=True, max_theta=1e9, max_entry=1e9, epsilon=0.0)
        assert math.isclose(inner(free, h_0), s * abs(c) * (n_k / n_0 - 1), rel_tol=1e-7, abs_tol=1e-9 * s)


def test_the_released_code_can_violate_the_constraint_of_the_theorem() -> None:
    # beta < 0 and nk < n0: raw theta is too small for normalised updates
    g_0, g_k = torch.tensor([4.0, 0.0]).double(), torch.tensor([-1.0, 1.0]).double()
    assert inner(mixed(g_k, g_0, "released", normalise=True, max_entry=1e9), g_0) < -0.1
    assert inner(mixed(g_k, g_0, "theorem", normalise=True), g_0) == pytest.approx(0)


@given(updates())
@few
def test_lengths_are_bounded(pair: tuple[Tensor, Tensor]) -> None:
    s = lengths(*pair)[3]
    assert float(mixed(*pair, "theorem", normalise=True).norm()) <= s * (1 + 1e-9)
    assert float(mixed(*pair, "sum", normalise=True).norm()) <= 2 * s * (1 + 1e-9)
    assert float(mixed(*pair, "released", normalise=True).abs().max()) <= 0.1


def test_lengths_of_parallel_updates_reach_the_bounds() -> None:
    g_0 = random_update(1, (3, 4))
    for rule, times in {"theorem": 1, "sum": 2}.items():
        result = mixed(3 * g_0, g_0, rule, normalise=True)
        assert float(result.norm()) == pytest.approx(times * 2 * float(g_0.norm()))


# off, granularity, matrix form


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("granularity", ["kernel", "tensor"])
@given(pair=updates())
@few
def test_off_returns_the_update(normalise: bool, granularity: str, pair: tuple[Tensor, Tensor]) -> None:
    result = mixed(*pair, "off", normalise=normalise, granularity=granularity)
    assert torch.equal(result, pair[0])


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("rule", RULES)
@given(pair=updates(st.just((3, 2, 3, 3))))
@few
def test_kernels_are_mixed_independently(rule: str, normalise: bool, pair: tuple[Tensor, Tensor]) -> None:
    # one kernel is a tensor of its own, of any size
    whole = mixed(*pair, rule, normalise=normalise, granularity="kernel")
    for out in range(3):
        for into in range(2):
            g_k, g_0 = (g[out : out + 1, into : into + 1] for g in pair)
            alone = mixed(g_k, g_0, rule, normalise=normalise, granularity="tensor")
            assert torch.allclose(whole[out, into], alone[0, 0], rtol=1e-12, atol=1e-15)
            assert torch.equal(alone, mixed(g_k, g_0, rule, normalise=normalise, granularity="kernel"))


def test_auto_granularity_follows_the_rule() -> None:
    pair = random_update(1, (2, 2, 3, 3)), random_update(2, (2, 2, 3, 3))
    for rule in RULES:
        chosen = InCo(rule=rule, granularity="kernel" if rule == "released" else "tensor")  # type: ignore[arg-type]
        assert torch.equal(InCo(rule=rule).mix(*pair)[0], chosen.mix(*pair)[0])  # type: ignore[arg-type]
    kernels = InCo(rule="theorem", granularity="kernel").mix(*pair)
    assert len(kernels[2]) == 4 and len(InCo(rule="theorem").mix(*pair)[2]) == 1  # one beta each


@pytest.mark.parametrize("rule", RULES)
@given(pair=updates(st.just((4, 6))))
@few
def test_matrix_form_is_vector_form(rule: str, pair: tuple[Tensor, Tensor]) -> None:
    flat = mixed(pair[0].flatten(), pair[1].flatten(), rule, normalise=True)
    assert torch.equal(mixed(*pair, rule, normalise=True).flatten(), flat)


# updates of length zero


@pytest.mark.parametrize("granularity", ["kernel", "tensor"])
@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("rule", RULES)
def test_updates_of_length_zero(rule: str, normalise: bool, granularity: str) -> None:
    some, zero = random_update(3, (2, 2, 3, 3), 0.01), torch.zeros(2, 2, 3, 3, dtype=torch.float64)
    fields: dict[str, Any] = {"normalise": normalise, "granularity": granularity}
    assert torch.equal(mixed(some, zero, rule, **fields), some)  # the anchor carries nothing
    assert torch.equal(mixed(zero, some, rule, **fields), zero)
    assert torch.equal(mixed(zero, zero, rule, **fields), zero)


@pytest.mark.parametrize("rule", RULES)
def test_zero_kernels_do_not_affect_others(rule: str) -> None:
    g_k, g_0 = random_update(1, (3, 2, 3, 3), 0.01), random_update(2, (3, 2, 3, 3), 0.01)
    g_k[0], g_0[1] = 0, 0
    result = mixed(g_k, g_0, rule, normalise=True, granularity="kernel")
    assert torch.isfinite(result).all()
    assert torch.equal(result[0], g_k[0]) and torch.equal(result[1], g_k[1])
    assert torch.equal(result[2:], mixed(g_k[2:], g_0[2:], rule, normalise=True, granularity="kernel"))


@given(updates(), st.integers(-30, 30))
@few
def test_tiny_and_huge_updates_stay_finite(pair: tuple[Tensor, Tensor], power: int) -> None:
    for rule in RULES:
        result = mixed(pair[0] * 10.0**power, pair[1], rule, normalise=True)
        assert torch.isfinite(result).all()


# positions without an owner


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("rule", RULES)
@given(pair=updates(st.just((4, 6))), rows=st.integers(1, 4), columns=st.integers(1, 6))
@few
def test_only_owned_positions_take_part(
    rule: str, normalise: bool, pair: tuple[Tensor, Tensor], rows: int, columns: int
) -> None:
    owned = torch.zeros(4, 6, dtype=torch.bool)
    owned[:rows, :columns] = True
    filter_ = InCo(rule=rule, normalise=normalise, granularity="tensor")  # type: ignore[arg-type]
    result, theta, beta = filter_.mix(*pair, owned=owned)
    alone, theta_alone, beta_alone = filter_.mix(*(g[:rows, :columns] for g in pair))
    assert torch.allclose(result[:rows, :columns], alone, rtol=1e-9, atol=1e-12)
    assert torch.equal(result[~owned], pair[0][~owned])
    assert torch.allclose(theta, theta_alone) and torch.allclose(beta, beta_alone)


# wrong fields


@pytest.mark.parametrize("name", ["max_theta", "max_entry"])
def test_limits_are_above_zero(name: str) -> None:
    with pytest.raises(InputError, match=f"server_filter.{name} is 0"):
        InCo(**{name: 0.0})  # type: ignore[arg-type]
