"""Shares by class: `pathological` in its three variants and `pfedhn` (experiments.md 2.3 and 2.4)."""

from __future__ import annotations

import math

import numpy as np

from polyfed.data.arrays import Ints
from polyfed.errors import InputError


class _Hand:
    """What is given out so far: shuffled samples per class, and the pieces each client holds."""

    def __init__(self, labels: Ints, classes: int, clients: int, rng: np.random.Generator) -> None:
        self.rng = rng
        self.by_class = [rng.permutation(np.flatnonzero(labels == label)) for label in range(classes)]
        self.pieces: list[list[Ints]] = [[] for _ in range(clients)]

    def give(self, label: int, holders: list[int], amounts: list[int]) -> None:
        """The next samples of a class, so many to each of its holders."""
        ends = np.cumsum([0, *amounts])
        for holder, start, end in zip(holders, ends[:-1], ends[1:], strict=True):
            self.pieces[holder].append(self.by_class[label][start:end])

    def sizes(self) -> list[int]:
        return [sum(len(piece) for piece in mine) for mine in self.pieces]

    def shares(self) -> list[Ints]:
        return [np.concatenate([np.empty(0, dtype=np.int64), *mine]) for mine in self.pieces]


def check_classes_per_client(wanted: int, classes: int) -> None:
    """Refuse more classes per client than there are."""
    if wanted > classes:
        raise InputError(
            f"data.partition.classes_per_client is {wanted}, but the dataset has {classes} classes; "
            f"it must be from 1 to {classes}"
        )


def pathological(
    labels: Ints,
    classes: int,
    clients: int,
    rng: np.random.Generator,
    *,
    classes_per_client: int,
    variant: str,
    balance: bool,
    cover_all: bool,
    least: float,
) -> tuple[list[Ints], list[str]]:
    """Every client holds `classes_per_client` classes; `least` is the smallest sensible client (unbalanced)."""
    check_classes_per_client(classes_per_client, classes)
    if variant == "shards":
        if not balance:
            raise InputError("data.partition.balance is false, but variant 'shards' makes equal shards; leave it out")
        return _shards(labels, clients, rng, classes_per_client), []
    if variant == "pfllib":
        holders = _pfllib_holders(classes, clients, classes_per_client)
    else:
        holders = _first_deterministic_holders(classes, clients, classes_per_client, rng)
    hand = _Hand(labels, classes, clients, rng)
    floor = least / classes
    for label, mine in enumerate(holders):
        if mine:
            hand.give(label, mine, _amounts(len(hand.by_class[label]), mine, label, balance, floor, rng))
    notes = _fewer_classes_note(holders, clients, classes_per_client)
    unused = [label for label, mine in enumerate(holders) if not mine]
    if unused and not cover_all:
        lost = sum(len(hand.by_class[label]) for label in unused)
        notes.append(f"no client holds {_listed(unused)}: {lost} samples are unused (cover_all would give them out)")
    elif unused:
        _give_to_the_poorest(hand, unused, clients * classes_per_client, classes)
        notes.append(f"{_listed(unused)} went to the clients with fewest samples, who hold more classes now")
    return hand.shares(), notes


def _pfllib_holders(classes: int, clients: int, per_client: int) -> list[list[int]]:
    """2.3: each class goes to the first ceil(N/C * m) clients, in id order, that may still take one.

    The clients of such a block take the same m classes one after the other and are full together, so class c
    belongs to block c // m; blocks beyond the last client do not exist, and their classes are lost.
    """
    block = -(-clients * per_client // classes)
    starts = [label // per_client * block for label in range(classes)]
    return [list(range(start, min(start + block, clients))) for start in starts]


def _first_deterministic_holders(
    classes: int, clients: int, per_client: int, rng: np.random.Generator
) -> list[list[int]]:
    """Client i surely holds class i mod C; its other classes are drawn without repetition."""
    holders: list[list[int]] = [[] for _ in range(classes)]
    for client in range(clients):
        sure = client % classes
        others = rng.permutation(np.delete(np.arange(classes), sure))[: per_client - 1]
        for label in (sure, *others.tolist()):
            holders[label].append(client)
    return holders


def _amounts(
    count: int, holders: list[int], label: int, balance: bool, floor: float, rng: np.random.Generator
) -> list[int]:
    """How a class of `count` samples is cut among its holders; what is left goes to the last."""
    if count < len(holders):
        raise InputError(
            f"data.partition: class {label} has {count} samples for {len(holders)} clients, so client "
            f"{holders[count]} would get none of it; use more samples, fewer clients or fewer classes per client"
        )
    per = count / len(holders)
    if balance:
        amounts = [count // len(holders)] * (len(holders) - 1)
    else:
        # A whole number in [max(per/10, least/C), per); at least one value even for the smallest classes.
        highest = max(math.ceil(per) - 1, 1)
        lowest = min(math.ceil(max(per / 10, floor)), highest)
        amounts = rng.integers(lowest, highest, size=len(holders) - 1, endpoint=True).tolist()
    return [*amounts, count - sum(amounts)]


def _fewer_classes_note(holders: list[list[int]], clients: int, per_client: int) -> list[str]:
    held = np.bincount([client for mine in holders for client in mine], minlength=clients)
    fewer = np.flatnonzero(held < per_client).tolist()
    if not fewer:
        return []
    hold = "holds" if len(fewer) == 1 else "hold"
    return [f"{_listed(fewer, 'client', 'clients')} {hold} fewer than {per_client} classes: none were left"]


def _give_to_the_poorest(hand: _Hand, unused: list[int], picks: int, classes: int) -> None:
    for label in unused:
        count = len(hand.by_class[label])
        sizes = hand.sizes()
        poorest = sorted(range(len(sizes)), key=lambda client: (sizes[client], client))
        mine = sorted(poorest[: min(-(-picks // classes), count)])
        if mine:
            hand.give(label, mine, [len(part) for part in np.array_split(np.arange(count), len(mine))])


def _shards(labels: Ints, clients: int, rng: np.random.Generator, per_client: int) -> list[Ints]:
    """Sort by label, cut into N*m shards, give m of them to each client by lot."""
    number = clients * per_client
    if number > len(labels):
        raise InputError(
            f"data.partition: {clients} clients with {per_client} shards each need {number} samples, but there are "
            f"{len(labels)}, so client {len(labels) // per_client} would be short; use fewer clients or more samples"
        )
    order = rng.permutation(len(labels))
    shards = np.array_split(order[np.argsort(labels[order], kind="stable")], number)
    lot = rng.permutation(number).reshape(clients, per_client)
    return [np.concatenate([shards[shard] for shard in mine]) for mine in lot]


def pfedhn(
    labels: Ints,
    classes: int,
    clients: int,
    rng: np.random.Generator,
    *,
    classes_per_client: int,
    extra_offer: bool,
) -> tuple[list[Ints], list[str]]:
    """2.4: classes are offered in uneven pieces; clients in turn pick the classes with most offers left."""
    check_classes_per_client(classes_per_client, classes)
    offers = clients * classes_per_client // classes + int(extra_offer)
    if offers * classes < clients * classes_per_client:
        raise InputError(
            f"data.partition: {classes} classes with {offers} offers each are {offers * classes} offers, but "
            f"{clients} clients pick {clients * classes_per_client}; set extra_offer to true or change "
            "the number of clients"
        )
    hand = _Hand(labels, classes, clients, rng)
    weights = rng.uniform(0.4, 0.6, size=(classes, offers))
    shares_of = np.cumsum(weights / weights.sum(axis=1, keepdims=True), axis=1)
    left = np.full(classes, offers)
    for client in range(clients):
        # By lot among equals: random keys decide between classes with the same number of offers left.
        picks = np.lexsort((rng.random(classes), -left))[:classes_per_client]
        for label in picks.tolist():
            _take_offer(hand, client, label, shares_of[label], offers - int(left[label]))
        left[picks] -= 1
    unused = len(labels) - sum(hand.sizes())
    notes = [f"{unused} samples belong to offers nobody picked and are unused"] if unused else []
    return hand.shares(), notes


def _take_offer(hand: _Hand, client: int, label: int, ends: np.ndarray, offer: int) -> None:
    samples = hand.by_class[label]
    cuts = [0, *np.floor(ends * len(samples) + 1e-9).astype(np.int64).tolist()]
    if cuts[offer] == cuts[offer + 1]:
        raise InputError(
            f"data.partition: class {label} has {len(samples)} samples for {len(ends)} offers, so client {client} "
            "would get none of it; use more samples, fewer clients or fewer classes per client"
        )
    hand.pieces[client].append(samples[cuts[offer] : cuts[offer + 1]])


def _listed(numbers: list[int], one: str = "class", many: str = "classes", most: int = 12) -> str:
    words = ", ".join(str(number) for number in numbers[:most])
    more = f" and {len(numbers) - most} more" if len(numbers) > most else ""
    return f"{one if len(numbers) == 1 else many} {words}{more}"
