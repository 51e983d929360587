"""Client metadata of a run (`clients.json`): each client's model and its number of samples per class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from polyfed.core.client_profile import Profile
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
            client_entry(profile, _label_counts(train_labels[train]), _label_counts(test_labels[test]))
            for profile, train, test in zip(roster, partition.train, test_indices, strict=True)
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


def _label_counts(labels: np.ndarray[Any, Any]) -> dict[str, int]:
    classes, counts = np.unique(labels, return_counts=True)
    return {str(label): int(count) for label, count in zip(classes, counts, strict=True)}
