"""Privacy accounting with opacus: Renyi differential privacy, composed over releases.

Subsampling does not amplify privacy here, because the server knows which clients take part in a round.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from functools import cache

from polyfed.errors import InputError, require

# Orders of Renyi divergence, for epsilons from far below 0.01 to far above 1000.
ORDERS = tuple(1 + 10 ** (k / 40) for k in range(-120, 281))
TOLERANCE = 1e-7  # of a calibrated epsilon, which never exceeds the requested one
FIRST_MULTIPLIER, MAX_MULTIPLIER = 20.0, 1e6  # where the search begins, and where it gives up


def epsilon(releases: Iterable[tuple[float, int]], delta: float) -> float:
    """Return the composed epsilon of Gaussian releases, given as (noise multiplier, number of releases)."""
    counted = tuple((multiplier, count) for multiplier, count in releases if count)
    return _epsilon(counted, delta) if counted else 0.0


def check_installed() -> None:
    """Raise `InputError` if opacus is not installed."""
    require("opacus", extra="privacy", sentence="privacy needs")


@cache
def _epsilon(releases: tuple[tuple[float, int], ...], delta: float) -> float:
    check_installed()
    return max(0.0, _compose(releases, delta))


def _compose(releases: Iterable[tuple[float, int]], delta: float) -> float:
    from opacus.accountants import RDPAccountant

    accountant = RDPAccountant()
    accountant.history = [(multiplier, 1.0, count) for multiplier, count in releases]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # opacus warns if the best order is the last one; the bound still holds
        return float(accountant.get_epsilon(delta, alphas=list(ORDERS)))


def multiplier(epsilon: float, delta: float, releases: int) -> float:
    """Return the smallest noise multiplier with which this many releases cost at most `epsilon`.

    The search is the bisection of opacus, which does not end if `TOLERANCE` is below the precision of a float, as it
    is for an epsilon of 1e9. This one ends when the interval contains no other float.
    """
    check_installed()
    low, high = 0.0, FIRST_MULTIPLIER
    while (spent := _compose([(high, releases)], delta)) > epsilon:
        if high > MAX_MULTIPLIER:
            raise InputError(
                f"epsilon {epsilon:g} at delta {delta:g} over {releases} releases needs too much noise; "
                "raise epsilon or lower the number of rounds"
            )
        high *= 2
    while epsilon - spent > TOLERANCE and low < (middle := (low + high) / 2) < high:
        cost = _compose([(middle, releases)], delta)
        if cost < epsilon:
            high, spent = middle, cost
        else:
            low = middle
    return high
