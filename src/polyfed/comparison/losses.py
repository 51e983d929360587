"""What can be read from a run's loss of the original task, `loss.by_round` of its result."""

from __future__ import annotations

from collections.abc import Sequence


def loss_increase(by_round: Sequence[float | None]) -> list[float | None]:
    """Per round, the loss minus the least so far: 0 wherever it falls to a new minimum (FedL2G, figures 1 and 3).

    A round in which nobody trained has no loss, and no increase.
    """
    found: list[float | None] = []
    least = float("inf")
    for loss in by_round:
        if loss is not None:
            least = min(least, loss)
        found.append(None if loss is None else loss - least)
    return found
