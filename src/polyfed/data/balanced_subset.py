"""Taking a part of a dataset that is balanced over its classes."""

from __future__ import annotations

import numpy as np

from polyfed.data.arrays import Ints
from polyfed.errors import InputError


def balanced_limit(labels: Ints, limit: int, rng: np.random.Generator) -> Ints:
    """Sorted numbers of `limit` samples, equally many of each class as far as the classes go."""
    labels = np.asarray(labels)
    if limit < 1:
        raise InputError(f"data.limit is {limit}, but at least 1 sample is needed (or null for all)")
    if limit >= len(labels):
        return np.arange(len(labels), dtype=np.int64)
    present, counts = np.unique(labels, return_counts=True)
    take = _level(counts, limit)
    # What an equal number for all leaves over goes to classes drawn among those that have more.
    rest = limit - int(take.sum())
    take[rng.permutation(np.flatnonzero(counts > take))[:rest]] += 1
    chosen = [
        rng.permutation(np.flatnonzero(labels == label))[:number] for label, number in zip(present, take, strict=True)
    ]
    return np.sort(np.concatenate(chosen)).astype(np.int64)


def _level(counts: Ints, limit: int) -> Ints:
    """The largest equal number per class (less where a class has less) that stays within the limit."""
    low, high = 0, int(counts.max())
    while low < high:
        middle = (low + high + 1) // 2
        if int(np.minimum(counts, middle).sum()) <= limit:
            low = middle
        else:
            high = middle - 1
    return np.minimum(counts, low)
