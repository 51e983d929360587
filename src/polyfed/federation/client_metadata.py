"""Who takes part in a run: each client's model and how many samples of each class it holds, for figures of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from polyfed.core.profile import Profile
from polyfed.data.dataset import Dataset
from polyfed.data.partition_file import Partition


def shares(
    roster: Sequence[Profile],
    data: Dataset,
    partition: Partition,
    matched: Sequence[np.ndarray[Any, Any]] | None = None,
) -> dict[str, Any]:
    """The content of `clients.json`. Classes of which a client has nothing are left out."""
    train = data.train.labels.numpy()
    tested, tests = (train, partition.test) if matched is None or data.test is None else (data.test.labels, matched)
    return {
        "class_names": list(data.class_names),
        "clients": [
            entry(profile, _counts(train[own]), _counts(np.asarray(tested)[held_out]))
            for profile, own, held_out in zip(roster, partition.train, tests, strict=True)
        ],
    }


def entry(profile: Profile, train: Mapping[str, int], test: Mapping[str, int]) -> dict[str, Any]:
    """One client in `clients.json`, with its samples by class."""
    return {
        "name": profile.name,
        "model": profile.architecture,
        "numbers": profile.size,
        "train": dict(train),
        "test": dict(test),
    }


def _counts(labels: np.ndarray[Any, Any]) -> dict[str, int]:
    classes, counts = np.unique(labels, return_counts=True)
    return {str(label): int(count) for label, count in zip(classes, counts, strict=True)}
