"""The accountant compared with the exact cost of Gaussian releases."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_ndtr, ndtr

from polyfed.errors import InputError
from polyfed.guards import accountant
from polyfed.guards.sensitivity import classic_multiplier


def exact_delta(epsilon: float, multiplier: float, releases: int) -> float:
    """Balle and Wang 2018, Theorem 8. k releases are one with standard deviation sigma / sqrt(k)."""
    mu = math.sqrt(releases) / multiplier
    lost = math.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu))
    return float(ndtr(mu / 2 - epsilon / mu) - lost)


@given(
    epsilon=st.floats(0.05, 40), delta=st.sampled_from([1e-3, 1e-5, 1e-7]), releases=st.sampled_from([1, 2, 10, 300])
)
@settings(max_examples=25, deadline=None)
def test_calibrated_noise_matches_the_accountant(epsilon: float, delta: float, releases: int) -> None:
    multiplier = accountant.multiplier(epsilon, delta, releases)
    spent = accountant.epsilon([(multiplier, releases)], delta)
    assert epsilon - 1e-6 <= spent <= epsilon
    assert accountant.epsilon([(multiplier * 0.999, releases)], delta) > epsilon  # no less noise would do


@given(multiplier=st.floats(0.3, 60), releases=st.integers(1, 500), delta=st.sampled_from([1e-3, 1e-5, 1e-8]))
@settings(max_examples=25, deadline=None)
def test_the_accountant_is_a_tight_bound(multiplier: float, releases: int, delta: float) -> None:
    spent = accountant.epsilon([(multiplier, releases)], delta)
    assert exact_delta(spent, multiplier, releases) <= delta
    if 0.1 < spent < 100:
        assert exact_delta(0.8 * spent, multiplier, releases) > delta


def test_releases_compose() -> None:
    one, two = accountant.epsilon([(4.0, 1)], 1e-5), accountant.epsilon([(4.0, 2)], 1e-5)
    assert one < two < 2 * one
    assert accountant.epsilon([(4.0, 1), (4.0, 1)], 1e-5) == pytest.approx(two)
    # two fields of other noise: as one of the noise whose inverse square is the sum of theirs
    together = 1 / math.sqrt(1 / 3**2 + 1 / 5**2)
    assert accountant.epsilon([(3.0, 1), (5.0, 1)], 1e-5) == pytest.approx(accountant.epsilon([(together, 1)], 1e-5))
    assert accountant.epsilon([], 1e-5) == accountant.epsilon([(1.0, 0)], 1e-5) == 0


def test_epsilon_one_per_release_is_twelve_over_fifty_rounds() -> None:
    """5,000 samples, epsilon 1 per release, 50 rounds of 2 releases: 12.7 by zCDP; the accountant is tighter."""
    multiplier, delta = classic_multiplier(1.0, 1 / 5000), 1 / 5000
    rho = 100 / (2 * multiplier**2)
    by_zcdp = rho + 2 * math.sqrt(rho * math.log(1 / delta))
    assert by_zcdp == pytest.approx(12.7, abs=0.05)
    assert 11 < accountant.epsilon([(multiplier, 100)], delta) < by_zcdp


def test_the_classic_noise_costs_at_most_its_epsilon() -> None:
    assert classic_multiplier(0.5, 1e-5) == pytest.approx(9.6896, abs=1e-4)
    for epsilon in (0.25, 0.5, 1.0):
        assert exact_delta(epsilon, classic_multiplier(epsilon, 1e-5), 1) <= 1e-5


@pytest.mark.parametrize("epsilon", [1e7, 1e9, 1e300])
def test_a_huge_budget_ends_the_search(epsilon: float) -> None:
    """Floats near 1e9 are 1e-7 apart, the tolerance of the search."""
    multiplier = accountant.multiplier(epsilon, 1e-5, 100)
    assert epsilon * (1 - 1e-12) <= accountant.epsilon([(multiplier, 100)], 1e-5) <= epsilon


def test_an_impossible_budget_is_refused() -> None:
    with pytest.raises(InputError, match=r"epsilon 1e-08 at delta 1e-05 over 500 releases needs too much noise"):
        accountant.multiplier(1e-8, 1e-5, 500)
