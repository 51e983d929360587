"""Quantities computed from the training loss by round, `loss.by_round` of a result."""

from __future__ import annotations

from collections.abc import Sequence


def loss_increase(by_round: Sequence[float | None]) -> list[float | None]:
    """Return for each round the loss minus the minimum so far (FedL2G, figures 1 and 3).

    The increase is 0 at a new minimum, and None in a round without a loss.
    """
    increases: list[float | None] = []
    minimum = float("inf")
    for loss in by_round:
        if loss is not None:
            minimum = min(minimum, loss)
        increases.append(None if loss is None else loss - minimum)
    return increases
