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
    from opacus.accountants import RDPAccountant

    accountant = RDPAccountant()
    accountant.history = [(multiplier, 1.0, count) for multiplier, count in releases]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # opacus warns if the best order is the last one; the bound still holds
        return max(0.0, float(accountant.get_epsilon(delta, alphas=list(ORDERS))))


def multiplier(epsilon: float, delta: float, releases: int) -> float:
    """Return the smallest noise multiplier with which this many releases cost at most `epsilon`."""
    check_installed()
    from opacus.accountants.utils import get_noise_multiplier

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return float(
                get_noise_multiplier(
                    target_epsilon=epsilon,
                    target_delta=delta,
                    sample_rate=1.0,
                    steps=releases,
                    accountant="rdp",
                    epsilon_tolerance=TOLERANCE,
                    alphas=list(ORDERS),
                )
            )
        except ValueError:
            raise InputError(
                f"epsilon {epsilon:g} at delta {delta:g} over {releases} releases needs too much noise; "
                "raise epsilon or lower the number of rounds"
            ) from None
