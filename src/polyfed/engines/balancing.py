"""Balance of work between workers: move few clients so that all workers finish at about the same time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

TOLERANCE = 0.02  # difference between two workers that is left, as a share of their mean work; times vary by as much
MAX_PAIRS = 10_000  # largest number of pairs to compare for a swap; moves are enough to balance longer queues


def balance(queues: Sequence[list[int]], seconds: Sequence[float]) -> None:
    """Move tasks from the queue with the most work to the one with the least, until both have about the same.

    `seconds` are the expected times of the tasks. One task is moved, or swapped for a shorter one of the other queue,
    if that is closer to half of the difference.
    """
    for _ in range(sum(map(len, queues))):
        work = [sum(seconds[number] for number in queue) for queue in queues]
        most, least = (queues[work.index(value)] for value in (max(work), min(work)))
        gap, allowed = max(work) - min(work), TOLERANCE * sum(work) / len(work)
        if gap <= allowed:
            return
        change = _best_move(most, least, seconds, gap)
        if change is None:
            return
        sent, returned = change
        difference = seconds[sent] - (0.0 if returned is None else seconds[returned])
        if gap - abs(gap - 2 * difference) <= allowed:
            return  # not worth it: the client has to be loaded by another worker
        most.remove(sent)
        least.append(sent)
        if returned is not None:
            least.remove(returned)
            most.append(returned)


def _best_move(
    most: Sequence[int], least: Sequence[int], seconds: Sequence[float], gap: float
) -> tuple[int, int | None] | None:
    """Return the task to move, and the one to return or None, that leave the smallest difference."""
    moves: list[tuple[int, int | None]] = [(number, None) for number in most]
    best = min(moves, key=lambda move: abs(gap / 2 - seconds[move[0]]), default=None)
    if best is None or abs(gap - 2 * seconds[best[0]]) <= gap / 4 or len(most) * len(least) > MAX_PAIRS:
        return best
    swaps = itertools.product(most, least)
    swap = min(swaps, key=lambda pair: abs(gap / 2 - seconds[pair[0]] + seconds[pair[1]]), default=None)
    if swap is None:
        return best
    return min(best, swap, key=lambda m: abs(gap / 2 - seconds[m[0]] + (0.0 if m[1] is None else seconds[m[1]])))
