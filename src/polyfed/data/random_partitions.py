"""Shares by chance: `iid` and `dirichlet` (experiments.md 2.1 and 2.2)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from polyfed.data.arrays import Ints
from polyfed.errors import InputError

Shares = list[Ints]
# Draws are made in blocks, so that a thousand tries cost a few array operations and little memory.
_BLOCK_NUMBERS = 1_000_000
_LARGEST_BLOCK = 64
# A draw over more pairs of class and client than this counts as several tries (but 50 draws are always made):
# on such sizes draws hardly differ from each other, and a hopeless setting must be refused within a second.
_PAIRS_PER_TRY = 10_000
_FEWEST_DRAWS = 50


def iid(labels: Ints, clients: int, rng: np.random.Generator, *, stratified: bool) -> Shares:
    """Shuffle and cut into parts whose sizes differ by at most one; stratified, also within every class."""
    order = rng.permutation(len(labels))
    if not stratified:
        return np.array_split(order, clients)
    # Dealing the samples out class after class keeps both the class parts and the totals within one.
    dealt = order[np.argsort(labels[order], kind="stable")]
    return [dealt[client::clients] for client in range(clients)]


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
) -> Shares:
    """Give every class out in proportions q ~ Dir(alpha), until the smallest client has `min_size`."""
    counts = np.bincount(labels, minlength=classes)
    least = max(min_size, 1)
    if least * clients > len(labels):
        raise InputError(
            f"data.partition: {clients} clients with at least {least} samples each need {least * clients} "
            f"samples, but there are {len(labels)}; use fewer clients, more samples or a smaller min_size"
        )
    amounts = _draw_amounts(counts, clients, rng, alpha, balance, least, max_tries)
    by_class = [rng.permutation(np.flatnonzero(labels == label)) for label in range(classes)]
    pieces = [np.split(by_class[label], np.cumsum(amounts[label])[:-1]) for label in range(classes)]
    return [np.concatenate([pieces[label][client] for label in range(classes)]) for client in range(clients)]


def _draw_amounts(
    counts: Ints,
    clients: int,
    rng: np.random.Generator,
    alpha: float,
    balance: bool,
    least: int,
    max_tries: int,
) -> Ints:
    """How many samples of each class each client gets, (classes, clients): the first draw that suits."""
    pairs = len(counts) * clients
    draws = min(max_tries, max(_FEWEST_DRAWS, max_tries * _PAIRS_PER_TRY // pairs))
    best, poorest, tried, block = -1, 0, 0, 1
    while tried < draws:
        block = max(1, min(block, draws - tried, _BLOCK_NUMBERS // pairs))
        amounts = _one_block(counts, clients, rng, alpha, balance, block)
        totals = amounts.sum(axis=1)
        smallest = totals.min(axis=1)
        suits = np.flatnonzero(smallest >= least)
        if len(suits):
            chosen: Ints = amounts[suits[0]]
            return chosen
        winner = int(np.argmax(smallest))
        if smallest[winner] > best:
            best, poorest = int(smallest[winner]), int(np.argmin(totals[winner]))
        tried += block
        block = min(2 * block, _LARGEST_BLOCK)
    held = "empty" if best == 0 else f"with {best} samples"
    raise InputError(
        f"data.partition: dirichlet with alpha {alpha:g} left client {poorest} {held} in the best of {draws} draws, "
        f"but each of the {clients} clients needs at least {least}; "
        "use a larger alpha, fewer clients, more samples, a smaller min_size or more max_tries"
    )


def _one_block(counts: Ints, clients: int, rng: np.random.Generator, alpha: float, balance: bool, tries: int) -> Ints:
    """Independent draws, (tries, classes, clients)."""
    proportions = rng.dirichlet(np.full(clients, alpha), size=(tries, len(counts)))
    if not balance:
        return _cut(proportions, counts[:, None])
    fair = counts.sum() / clients
    held = np.zeros((tries, clients), dtype=np.int64)
    amounts = np.empty(proportions.shape, dtype=np.int64)
    for label, count in enumerate(counts):
        below = held < fair
        q = np.where(below, proportions[:, label], 0.0)
        total = q.sum(axis=1, keepdims=True)
        # Guard of 2.2: when all proportions vanish, clients below the cap share the class evenly.
        q = np.where(total > 0, q, below)
        amounts[:, label] = _cut(q / q.sum(axis=1, keepdims=True), count)
        held += amounts[:, label]
    return amounts


def _cut(proportions: npt.NDArray[np.float64], count: Ints | np.int64) -> Ints:
    """Cut at floor(cumsum(q) * n_c)."""
    # The tiny term keeps a sum that was rounded to 0.999... from moving the last cut.
    ends = np.floor(np.cumsum(proportions, axis=-1) * count + 1e-9).astype(np.int64)
    ends[..., -1] = np.broadcast_to(np.asarray(count), ends.shape)[..., -1]
    return np.diff(ends, axis=-1, prepend=0)
