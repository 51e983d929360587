"""Class-balanced subsets of a dataset."""

from __future__ import annotations

import numpy as np

from polyfed.data.arrays import Ints
from polyfed.errors import InputError


def balanced_limit(labels: Ints, limit: int, rng: np.random.Generator) -> Ints:
    """Return the sorted indices of `limit` random samples, with equal class counts as far as possible."""
    labels = np.asarray(labels)
    if limit < 1:
        raise InputError(f"data.limit is {limit}, but at least 1 sample is needed (or null for all)")
    if limit >= len(labels):
        return np.arange(len(labels), dtype=np.int64)
    classes, counts = np.unique(labels, return_counts=True)
    selected = _equal_counts(counts, limit)
    # Random classes that have samples left provide the remaining samples, one each.
    rest = limit - int(selected.sum())
    selected[rng.permutation(np.flatnonzero(counts > selected))[:rest]] += 1
    indices = [
        rng.permutation(np.flatnonzero(labels == label))[:count]
        for label, count in zip(classes, selected, strict=True)
    ]
    return np.sort(np.concatenate(indices)).astype(np.int64)


def _equal_counts(counts: Ints, limit: int) -> Ints:
    """Return min(counts, n) for the largest n whose total stays within the limit, by binary search."""
    low, high = 0, int(counts.max())
    while low < high:
        middle = (low + high + 1) // 2
        if int(np.minimum(counts, middle).sum()) <= limit:
            low = middle
        else:
            high = middle - 1
    return np.minimum(counts, low)
