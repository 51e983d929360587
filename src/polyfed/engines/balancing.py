"""Balance of work between workers: move few clients so that all workers finish at about the same time."""

from __future__ import annotations

import itertools
from collections.abc import MutableSequence, Sequence

TOLERANCE = 0.02  # difference between two workers that is left, as a share of their mean work; times vary by as much
MAX_PAIRS = 10_000  # largest number of pairs to compare for a swap; moves are enough to balance longer queues


def balance(
    queues: Sequence[MutableSequence[int]],
    seconds: Sequence[float],
    started: Sequence[float] = (),
    allowed: float | None = None,
) -> None:
    """Move tasks from the queue with the most work to the one with the least, until both have about the same.

    `seconds` are the expected times of the tasks, and `started` the remaining times of those that the workers already
    have. One task is moved, or swapped for a shorter one of the other queue, if that is closer to half of the
    difference. Differences up to `allowed` seconds are left.
    """
    started = started or [0.0] * len(queues)
    for _ in range(sum(map(len, queues))):
        work = [time + sum(seconds[n] for n in queue) for time, queue in zip(started, queues, strict=True)]
        workers = range(len(queues))
        busiest = max((w for w in workers if queues[w]), key=work.__getitem__)
        idlest = min(workers, key=work.__getitem__)
        most, least, gap = queues[busiest], queues[idlest], work[busiest] - work[idlest]
        if allowed is None:
            allowed = TOLERANCE * sum(work) / len(work)
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
