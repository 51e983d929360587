"""Local split: the samples of each client are split into training and held-out samples, stratified by class."""

from __future__ import annotations

import numpy as np

from polyfed.data.arrays import Ints
from polyfed.errors import InputError


def check_fraction(fraction: float, key: str = "data.test_fraction") -> None:
    """Raise `InputError` if a fraction is negative or leaves no training samples."""
    if not 0.0 <= fraction < 1.0:
        raise InputError(f"{key} is {fraction}, but it must be at least 0 and below 1")


def local_split(
    client_indices: list[Ints], labels: Ints, fraction: float, rng: np.random.Generator
) -> tuple[list[Ints], list[Ints]]:
    """Split the samples of every client into (training, held-out), stratified by class, for all clients at once.

    A client holds out `fraction` of its samples, rounded to the nearest integer. Classes with a single sample do not
    count and stay in training. Each class holds out the floor of its own fraction. The classes with the largest
    remainders hold out one more, but every class has at least one training sample. A client with at least two samples
    holds out at least one, from its largest class if necessary. Every client has at least one training sample.
    """
    clients = len(client_indices)
    sizes = np.array([len(indices) for indices in client_indices])
    if fraction == 0.0:
        return [np.sort(indices) for indices in client_indices], [np.empty(0, dtype=np.int64) for _ in client_indices]
    samples = np.concatenate(client_indices)
    owners = np.repeat(np.arange(clients), sizes)
    # Sort by client and class, shuffled within a class. The first samples of each (client, class) run are held out.
    order = np.lexsort((rng.random(len(samples)), labels[samples], owners))
    samples, owners = samples[order], owners[order]
    starts = np.flatnonzero(np.diff(owners, prepend=-1) | np.diff(labels[samples], prepend=-1))
    lengths = np.diff(starts, append=len(samples))
    counts = _held_out_counts(owners[starts], lengths, fraction, clients, rng)
    rank = np.arange(len(samples)) - np.repeat(starts, lengths)
    held_out = rank < np.repeat(counts, lengths)
    return _by_client(samples, owners, ~held_out, clients), _by_client(samples, owners, held_out, clients)


def _held_out_counts(owners: Ints, lengths: Ints, fraction: float, clients: int, rng: np.random.Generator) -> Ints:
    """Return how many samples each (client, class) run holds out."""
    exact = np.where(lengths > 1, fraction * lengths, 0.0)
    counts = np.minimum(np.floor(exact + 1e-9).astype(np.int64), lengths - 1)
    remainders = np.where(counts < lengths - 1, exact - counts, 0.0)
    targets = np.floor(np.bincount(owners, exact, clients) + 0.5 + 1e-9)
    missing = (targets - np.bincount(owners, counts, clients)).astype(np.int64)
    # Sort the runs of each client by remainder, largest first, ties at random. The first `missing` get one more.
    order = np.lexsort((rng.random(len(owners)), -remainders, owners))
    first = np.searchsorted(owners, np.arange(clients))
    rank = np.arange(len(owners)) - first[owners[order]]
    gets_one_more = (rank < missing[owners[order]]) & (remainders[order] > 1e-9)
    counts[order[gets_one_more]] += 1
    _hold_out_at_least_one(counts, owners, lengths, clients)
    return counts


def _hold_out_at_least_one(counts: Ints, owners: Ints, lengths: Ints, clients: int) -> None:
    """Hold out one sample of the largest class of each client that has two samples and holds out none. In place."""
    without = (np.bincount(owners, counts, clients) == 0) & (np.bincount(owners, lengths, clients) >= 2)
    largest_first = np.lexsort((-lengths, owners))
    largest = largest_first[np.searchsorted(owners, np.flatnonzero(without))]
    counts[largest] += 1


def _by_client(
    samples: Ints, owners: Ints, mask: np.ndarray[tuple[int], np.dtype[np.bool_]], clients: int
) -> list[Ints]:
    """Return the samples of the mask by client, sorted."""
    samples, owners = samples[mask], owners[mask]
    order = np.lexsort((samples, owners))
    return np.split(samples[order], np.searchsorted(owners[order], np.arange(1, clients)))
