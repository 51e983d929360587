"""Client metadata of a run (`clients.json`): each client's model and its number of samples per class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from polyfed.core.client_profile import Profile
from polyfed.data.arrays import Ints
from polyfed.data.dataset import Dataset
from polyfed.data.partition_file import Partition


def client_metadata(
    roster: Sequence[Profile],
    data: Dataset,
    partition: Partition,
    matched_test: Sequence[np.ndarray[Any, Any]] | None = None,
) -> dict[str, Any]:
    """Return the content of `clients.json`. Classes without samples are left out of a client's counts."""
    train_labels = data.train.labels.numpy()
    if matched_test is None or data.test is None:
        test_labels, test_indices = train_labels, partition.test
    else:
        test_labels, test_indices = data.test.labels.numpy(), tuple(matched_test)
    return {
        "class_names": list(data.class_names),
        "clients": [
            client_entry(profile, train, test)
            for profile, train, test in zip(
                roster,
                label_counts(train_labels, partition.train),
                label_counts(test_labels, test_indices),
                strict=True,
            )
        ],
    }


def client_entry(profile: Profile, train: Mapping[str, int], test: Mapping[str, int]) -> dict[str, Any]:
    """Return the entry of one client in `clients.json`, with its samples per class."""
    return {
        "name": profile.name,
        "model": profile.architecture,
        "numbers": profile.size,
        "train": dict(train),
        "test": dict(test),
    }


def label_counts(labels: Ints, indices: Sequence[Ints]) -> list[dict[str, int]]:
    """Return the samples per class of every client from the indices of its samples."""
    counts: list[dict[str, int]] = [{} for _ in indices]
    clients = np.repeat(np.arange(len(indices)), [len(part) for part in indices])
    pairs = np.stack([clients, labels[np.concatenate(indices)]]) if len(clients) else np.empty((2, 0), np.int64)
    # all clients in one sort: a call of numpy per client would take most of the time of a large population
    width = int(pairs[1].max(initial=0)) + 1
    keys, numbers = np.unique(pairs[0] * width + pairs[1], return_counts=True)
    for key, number in zip(keys.tolist(), numbers.tolist(), strict=True):
        counts[key // width][str(key % width)] = number
    return counts
