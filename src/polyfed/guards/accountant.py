"""What releases cost, by opacus' accountant: Renyi differential privacy, composed over releases, without subsampling.

Who takes part in a round is no secret to the server, so nothing is gained from it being a sample of all clients.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from functools import cache

from polyfed.errors import InputError

# Orders of Renyi divergence that are tried: for epsilons from far below 0.01 to far above 1000.
ORDERS = tuple(1 + 10 ** (k / 40) for k in range(-120, 281))
TOLERANCE = 1e-7  # of a calibrated epsilon, which is never above the one that was asked for


def epsilon(releases: Iterable[tuple[float, int]], delta: float) -> float:
    """The composed epsilon of Gaussian releases: (noise multiplier, how many) of each kind."""
    made = tuple((multiplier, count) for multiplier, count in releases if count)
    return _epsilon(made, delta) if made else 0.0


@cache
def _epsilon(made: tuple[tuple[float, int], ...], delta: float) -> float:
    from opacus.accountants import RDPAccountant

    accountant = RDPAccountant()
    accountant.history = [(multiplier, 1.0, count) for multiplier, count in made]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the best order is the last one: the bound holds all the same
        return max(0.0, float(accountant.get_epsilon(delta, alphas=list(ORDERS))))


def multiplier(epsilon: float, delta: float, releases: int) -> float:
    """The least noise, in multiples of the sensitivity, with which so many releases together cost `epsilon`."""
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
                f"epsilon {epsilon:g} at delta {delta:g} over {releases} releases needs more noise than any value "
                "would survive; raise epsilon or lower the number of rounds"
            ) from None
