"""Partition in a fixed ratio between groups of classes: scheme `ratio` with reading `dominance`."""

from __future__ import annotations

import numpy as np

from polyfed.data.arrays import Ints
from polyfed.errors import InputError


def ratio_of(value: str | list[float] | tuple[float, ...]) -> list[float]:
    """Return the parts of a ratio such as "8:1:1" or [8, 1, 1] as fractions that add up to 1."""
    entries = value.split(":") if isinstance(value, str) else list(value)
    try:
        parts = [float(entry) for entry in entries]
    except (TypeError, ValueError):
        parts = []
    if len(parts) < 2 or not all(0 < part < float("inf") for part in parts):
        raise InputError(
            f"data.partition.ratio is {value!r}, but two or more positive numbers such as '8:1:1' are needed"
        )
    return [part / sum(parts) for part in parts]


class _SamplePool:
    """The samples that are not assigned yet, by class, in shuffled order."""

    def __init__(self, labels: Ints, groups: list[Ints], rng: np.random.Generator) -> None:
        self.rng = rng
        self.groups = groups
        classes = sum(len(group) for group in groups)
        self.by_class = [rng.permutation(np.flatnonzero(labels == label)) for label in range(classes)]
        self.remaining = np.array([len(indices) for indices in self.by_class])

    def remaining_by_group(self) -> Ints:
        """Return the number of unassigned samples of each group."""
        return np.array([self.remaining[group].sum() for group in self.groups])

    def take(self, group: int, count: int) -> list[Ints]:
        """Take up to `count` samples of a group, in equal numbers from its classes while they last."""
        classes = self.groups[group]
        taken = np.zeros(len(classes), dtype=np.int64)
        count = min(count, int(self.remaining[classes].sum()))
        while count:
            available = np.flatnonzero(self.remaining[classes] > taken)
            each, rest = divmod(count, len(available))
            extra = np.full(len(available), each)
            extra[self.rng.permutation(len(available))[:rest]] += 1
            extra = np.minimum(extra, self.remaining[classes][available] - taken[available])
            taken[available] += extra
            count -= int(extra.sum())
        chunks = []
        for label, number in zip(classes, taken, strict=True):
            start = len(self.by_class[label]) - self.remaining[label]
            chunks.append(self.by_class[label][start : start + number])
        self.remaining[classes] -= taken
        return chunks


def dominance(
    labels: Ints, classes: int, clients: int, rng: np.random.Generator, *, parts: list[float], groups: int
) -> tuple[list[Ints], list[str]]:
    """Give client k samples of its main group k mod G and of random other groups, in the ratio `parts`.

    Return the sample indices of each client, and notes.
    """
    if groups > classes or groups < len(parts):
        raise InputError(
            f"data.partition.groups is {groups}, but a ratio of {len(parts)} parts over {classes} classes needs "
            f"from {len(parts)} to {classes} groups"
        )
    size = len(labels) // clients
    if size < 1:
        raise InputError(
            f"data.partition: {len(labels)} samples are too few for {clients} clients, so client {len(labels)} would "
            "be empty; use fewer clients or more samples"
        )
    pool = _SamplePool(labels, np.array_split(np.arange(classes), groups), rng)
    indices: list[Ints] = []
    replaced, affected_clients = 0, 0
    for client in range(clients):
        main = client % groups
        others = rng.permutation(np.delete(np.arange(groups), main))[: len(parts) - 1]
        chunks, shortfall = _take_groups(pool, [main, *others.tolist()], _integer_counts(parts, size))
        indices.append(np.concatenate(chunks))
        replaced, affected_clients = replaced + shortfall, affected_clients + int(shortfall > 0)
    notes = []
    if replaced:
        notes.append(
            f"{replaced} of {size * clients} samples, at {affected_clients} of {clients} clients, came from other "
            "groups because the groups of the ratio had no samples left"
        )
    unused = len(labels) - size * clients
    if unused:
        notes.append(f"{unused} samples are unused: every client gets {size}")
    return indices, notes


def _take_groups(pool: _SamplePool, groups: list[int], counts: list[int]) -> tuple[list[Ints], int]:
    """Take `counts` samples of the groups. Return them, and how many had to come from other groups."""
    chunks: list[Ints] = []
    shortfall = 0
    for group, count in zip(groups, counts, strict=True):
        taken = pool.take(group, count)
        chunks += taken
        shortfall += count - sum(len(chunk) for chunk in taken)
    missing = shortfall
    while missing:
        # Take the missing samples from the largest remaining group. The pool always has enough samples in total.
        taken = pool.take(int(np.argmax(pool.remaining_by_group())), missing)
        chunks += taken
        missing -= sum(len(chunk) for chunk in taken)
    return chunks, shortfall


def _integer_counts(parts: list[float], size: int) -> list[int]:
    """Return the ratio as integer counts that add up to `size`, by the largest-remainder method."""
    exact = np.array(parts) * size
    counts = np.floor(exact + 1e-9).astype(np.int64)
    counts[np.argsort(counts - exact, kind="stable")[: size - int(counts.sum())]] += 1
    return [int(count) for count in counts]
