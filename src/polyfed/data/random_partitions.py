"""Random partitions: `iid` and `dirichlet`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from polyfed.data.arrays import Ints
from polyfed.errors import InputError

# Attempts are sampled in batches: a thousand attempts then take a few array operations and little memory.
_VALUES_PER_BATCH = 1_000_000
_MAX_BATCH_SIZE = 64
# An attempt with more (class, client) pairs than this counts as several attempts, but at least 50 are sampled.
# Attempts of this size hardly differ from each other, and an infeasible setting must fail within a second.
_PAIRS_PER_ATTEMPT = 10_000
_MIN_ATTEMPTS = 50


def iid(labels: Ints, clients: int, rng: np.random.Generator, *, stratified: bool) -> list[Ints]:
    """Shuffle the samples and cut them into parts whose sizes differ by at most one.

    If `stratified`, the samples of every class are also divided into parts whose sizes differ by at most one.
    """
    order = rng.permutation(len(labels))
    if not stratified:
        return np.array_split(order, clients)
    # Round-robin over samples sorted by class balances the classes and the totals at once.
    sorted_by_class = order[np.argsort(labels[order], kind="stable")]
    return [sorted_by_class[client::clients] for client in range(clients)]


def dirichlet(
    labels: Ints,
    classes: int,
    clients: int,
    rng: np.random.Generator,
    *,
    alpha: float,
    balance: bool,
    min_size: int,
    max_tries: int,
) -> list[Ints]:
    """Divide every class between the clients in proportions q ~ Dir(alpha).

    Sample the proportions again until the smallest client has at least `min_size` samples.
    """
    class_counts = np.bincount(labels, minlength=classes)
    min_size = max(min_size, 1)
    if min_size * clients > len(labels):
        raise InputError(
            f"data.partition: {clients} clients with at least {min_size} samples each need {min_size * clients} "
            f"samples, but there are {len(labels)}; use fewer clients, more samples or a smaller min_size"
        )
    counts = _sample_counts(class_counts, clients, rng, alpha, balance, min_size, max_tries)
    by_class = [rng.permutation(np.flatnonzero(labels == label)) for label in range(classes)]
    chunks = [np.split(by_class[label], np.cumsum(counts[label])[:-1]) for label in range(classes)]
    return [np.concatenate([chunks[label][client] for label in range(classes)]) for client in range(clients)]


def _sample_counts(
    class_counts: Ints,
    clients: int,
    rng: np.random.Generator,
    alpha: float,
    balance: bool,
    min_size: int,
    max_tries: int,
) -> Ints:
    """Return how many samples of each class each client gets, as (classes, clients).

    This is the first attempt in which every client has at least `min_size` samples.
    """
    pairs = len(class_counts) * clients
    attempts = min(max_tries, max(_MIN_ATTEMPTS, max_tries * _PAIRS_PER_ATTEMPT // pairs))
    best_size, smallest_client, tried, batch_size = -1, 0, 0, 1
    while tried < attempts:
        batch_size = max(1, min(batch_size, attempts - tried, _VALUES_PER_BATCH // pairs))
        counts = _sample_batch(class_counts, clients, rng, alpha, balance, batch_size)
        client_sizes = counts.sum(axis=1)
        min_sizes = client_sizes.min(axis=1)
        valid = np.flatnonzero(min_sizes >= min_size)
        if len(valid):
            first_valid: Ints = counts[valid[0]]
            return first_valid
        best = int(np.argmax(min_sizes))
        if min_sizes[best] > best_size:
            best_size, smallest_client = int(min_sizes[best]), int(np.argmin(client_sizes[best]))
        tried += batch_size
        batch_size = min(2 * batch_size, _MAX_BATCH_SIZE)
    size = "empty" if best_size == 0 else f"with {best_size} samples"
    raise InputError(
        f"data.partition: dirichlet with alpha {alpha:g} left client {smallest_client} {size} in the best of "
        f"{attempts} attempts, but each of the {clients} clients needs at least {min_size}; "
        "use a larger alpha, fewer clients, more samples, a smaller min_size or more max_tries"
    )


def _sample_batch(
    class_counts: Ints, clients: int, rng: np.random.Generator, alpha: float, balance: bool, batch_size: int
) -> Ints:
    """Return the counts of independent attempts, as (batch_size, classes, clients)."""
    proportions = rng.dirichlet(np.full(clients, alpha), size=(batch_size, len(class_counts)))
    if not balance:
        return _counts_from_proportions(proportions, class_counts[:, None])
    mean_size = class_counts.sum() / clients
    client_sizes = np.zeros((batch_size, clients), dtype=np.int64)
    counts = np.empty(proportions.shape, dtype=np.int64)
    for label, class_count in enumerate(class_counts):
        below_mean = client_sizes < mean_size
        q = np.where(below_mean, proportions[:, label], 0.0)
        total = q.sum(axis=1, keepdims=True)
        # If all proportions are zero, clients below the mean size get equal parts of the class.
        q = np.where(total > 0, q, below_mean)
        counts[:, label] = _counts_from_proportions(q / q.sum(axis=1, keepdims=True), class_count)
        client_sizes += counts[:, label]
    return counts


def _counts_from_proportions(proportions: npt.NDArray[np.float64], class_count: Ints | np.int64) -> Ints:
    """Return integer counts: cut a class of n samples at floor(cumsum(q) * n)."""
    # The small constant corrects for rounding errors, such as a sum of 0.999... instead of 1.
    ends = np.floor(np.cumsum(proportions, axis=-1) * class_count + 1e-9).astype(np.int64)
    ends[..., -1] = np.broadcast_to(np.asarray(class_count), ends.shape)[..., -1]
    return np.diff(ends, axis=-1, prepend=0)
