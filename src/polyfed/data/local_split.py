"""The split of each client's own share into a part to train on and a part to test on (experiments.md 2.6)."""

from __future__ import annotations

import numpy as np

from polyfed.data.arrays import Ints
from polyfed.errors import InputError


def check_fraction(fraction: float, key: str = "data.test_fraction") -> None:
    """Refuse a fraction that leaves nothing to train on."""
    if not 0.0 <= fraction < 1.0:
        raise InputError(f"{key} is {fraction}, but it must be at least 0 and below 1")


def local_split(
    shares: list[Ints], labels: Ints, fraction: float, rng: np.random.Generator
) -> tuple[list[Ints], list[Ints]]:
    """Cut every share into (kept, held out), class by class, for all clients at once.

    A class of one sample is kept. Of the others a client holds out `fraction` of their samples, rounded to the
    nearest whole number; each class gives the floor of its own fraction, and the rest comes from the classes with
    the largest remainders, but every class keeps at least one sample. A client with two samples or more that would
    hold out nothing holds out one, from its largest class. Every client keeps at least one sample.
    """
    sizes = np.array([len(share) for share in shares])
    if fraction == 0.0:
        return [np.sort(share) for share in shares], [np.empty(0, dtype=np.int64) for _ in shares]
    samples = np.concatenate(shares)
    owner = np.repeat(np.arange(len(shares)), sizes)
    # Sorted by client and class, in random order inside: the first few of each run are held out.
    order = np.lexsort((rng.random(len(samples)), labels[samples], owner))
    samples, owner = samples[order], owner[order]
    starts = np.flatnonzero(np.diff(owner, prepend=-1) | np.diff(labels[samples], prepend=-1))
    lengths = np.diff(starts, append=len(samples))
    take = _amounts(owner[starts], lengths, fraction, len(shares), rng)
    rank = np.arange(len(samples)) - np.repeat(starts, lengths)
    held_out = rank < np.repeat(take, lengths)
    return _per_client(samples, owner, ~held_out, len(shares)), _per_client(samples, owner, held_out, len(shares))


def _amounts(client: Ints, lengths: Ints, fraction: float, clients: int, rng: np.random.Generator) -> Ints:
    """How many samples each run of one client and class holds out."""
    wanted = np.where(lengths > 1, fraction * lengths, 0.0)
    take = np.minimum(np.floor(wanted + 1e-9).astype(np.int64), lengths - 1)
    remainder = np.where(take < lengths - 1, wanted - take, 0.0)
    target = np.floor(np.bincount(client, wanted, clients) + 0.5 + 1e-9)
    missing = (target - np.bincount(client, take, clients)).astype(np.int64)
    # Within each client, runs from the largest remainder down (ties by lot); the first `missing` give one more.
    order = np.lexsort((rng.random(len(client)), -remainder, client))
    first = np.searchsorted(client, np.arange(clients))
    place = np.arange(len(client)) - first[client[order]]
    more = (place < missing[client[order]]) & (remainder[order] > 1e-9)
    take[order[more]] += 1
    _hold_out_at_least_one(take, client, lengths, clients)
    return take


def _hold_out_at_least_one(take: Ints, client: Ints, lengths: Ints, clients: int) -> None:
    without = (np.bincount(client, take, clients) == 0) & (np.bincount(client, lengths, clients) >= 2)
    largest_first = np.lexsort((-lengths, client))
    head = largest_first[np.searchsorted(client, np.flatnonzero(without))]
    take[head] += 1


def _per_client(
    samples: Ints, owner: Ints, chosen: np.ndarray[tuple[int], np.dtype[np.bool_]], clients: int
) -> list[Ints]:
    mine, whose = samples[chosen], owner[chosen]
    order = np.lexsort((mine, whose))
    return np.split(mine[order], np.searchsorted(whose[order], np.arange(1, clients)))
