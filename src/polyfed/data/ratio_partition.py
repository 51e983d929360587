"""Shares in a fixed ratio between groups of classes: `ratio` with reading `dominance` (experiments.md 2.5)."""

from __future__ import annotations

import numpy as np

from polyfed.data.arrays import Ints
from polyfed.errors import InputError


def ratio_of(value: str | list[float] | tuple[float, ...]) -> list[float]:
    """The parts of a ratio such as "8:1:1" or [8, 1, 1], as fractions of one."""
    words = value.split(":") if isinstance(value, str) else list(value)
    try:
        parts = [float(word) for word in words]
    except (TypeError, ValueError):
        parts = []
    if len(parts) < 2 or not all(0 < part < float("inf") for part in parts):
        raise InputError(
            f"data.partition.ratio is {value!r}, but two or more positive numbers such as '8:1:1' are needed"
        )
    return [part / sum(parts) for part in parts]


class _Store:
    """The samples left, class by class, in shuffled order."""

    def __init__(self, labels: Ints, groups: list[Ints], rng: np.random.Generator) -> None:
        self.rng = rng
        self.groups = groups
        classes = sum(len(group) for group in groups)
        self.by_class = [rng.permutation(np.flatnonzero(labels == label)) for label in range(classes)]
        self.left = np.array([len(samples) for samples in self.by_class])

    def left_in_groups(self) -> Ints:
        return np.array([self.left[group].sum() for group in self.groups])

    def take(self, group: int, wanted: int) -> list[Ints]:
        """Up to so many samples of a group, equally many of each of its classes as far as they go."""
        members = self.groups[group]
        give = np.zeros(len(members), dtype=np.int64)
        wanted = min(wanted, int(self.left[members].sum()))
        while wanted:
            open_ = np.flatnonzero(self.left[members] > give)
            each, rest = divmod(wanted, len(open_))
            more = np.full(len(open_), each)
            more[self.rng.permutation(len(open_))[:rest]] += 1
            more = np.minimum(more, self.left[members][open_] - give[open_])
            give[open_] += more
            wanted -= int(more.sum())
        pieces = []
        for label, number in zip(members, give, strict=True):
            start = len(self.by_class[label]) - self.left[label]
            pieces.append(self.by_class[label][start : start + number])
        self.left[members] -= give
        return pieces


def dominance(
    labels: Ints, classes: int, clients: int, rng: np.random.Generator, *, parts: list[float], groups: int
) -> tuple[list[Ints], list[str]]:
    """Client k's samples come from its main group k mod G and from others drawn by lot, in the given ratio."""
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
    store = _Store(labels, np.array_split(np.arange(classes), groups), rng)
    shares: list[Ints] = []
    moved, movers = 0, 0
    for client in range(clients):
        main = client % groups
        others = rng.permutation(np.delete(np.arange(groups), main))[: len(parts) - 1]
        pieces, short = _collect(store, [main, *others.tolist()], _whole(parts, size))
        shares.append(np.concatenate(pieces))
        moved, movers = moved + short, movers + int(short > 0)
    notes = []
    if moved:
        notes.append(
            f"{moved} of {size * clients} samples, at {movers} of {clients} clients, came from other groups "
            "because the wanted ones had run out"
        )
    unused = len(labels) - size * clients
    if unused:
        notes.append(f"{unused} samples are unused: every client gets {size}")
    return shares, notes


def _collect(store: _Store, groups: list[int], demands: list[int]) -> tuple[list[Ints], int]:
    pieces: list[Ints] = []
    short = 0
    for group, demand in zip(groups, demands, strict=True):
        got = store.take(group, demand)
        pieces += got
        short += demand - sum(len(piece) for piece in got)
    missing = short
    while missing:
        # Remaining demand moves to the group with most samples left; there are always enough in all.
        got = store.take(int(np.argmax(store.left_in_groups())), missing)
        pieces += got
        missing -= sum(len(piece) for piece in got)
    return pieces, short


def _whole(parts: list[float], size: int) -> list[int]:
    """The ratio in whole samples: floors, and what is left to the largest remainders."""
    exact = np.array(parts) * size
    floors = np.floor(exact + 1e-9).astype(np.int64)
    floors[np.argsort(floors - exact, kind="stable")[: size - int(floors.sum())]] += 1
    return [int(number) for number in floors]
