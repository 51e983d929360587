"""Partitions by class: `pathological` in its three variants, and `pfedhn`."""

from __future__ import annotations

import math

import numpy as np

from polyfed.data.arrays import Ints
from polyfed.errors import InputError


class _Assignment:
    """A partition under construction: the shuffled indices of each class, and the chunks assigned to each client."""

    def __init__(self, labels: Ints, classes: int, clients: int, rng: np.random.Generator) -> None:
        self.by_class = [rng.permutation(np.flatnonzero(labels == label)) for label in range(classes)]
        self.chunks: list[list[Ints]] = [[] for _ in range(clients)]

    def assign(self, label: int, clients: list[int], counts: list[int]) -> None:
        """Assign the first samples of a class to the first client, the next ones to the second, and so on."""
        ends = np.cumsum([0, *counts])
        for client, start, end in zip(clients, ends[:-1], ends[1:], strict=True):
            self.chunks[client].append(self.by_class[label][start:end])

    def sizes(self) -> list[int]:
        """Return the number of samples of each client."""
        return [sum(len(chunk) for chunk in chunks) for chunks in self.chunks]

    def indices(self) -> list[Ints]:
        """Return the sample indices of each client."""
        return [np.concatenate([np.empty(0, dtype=np.int64), *chunks]) for chunks in self.chunks]


def check_classes_per_client(classes_per_client: int, classes: int) -> None:
    """Raise `InputError` if a client should hold more classes than the dataset has."""
    if classes_per_client > classes:
        raise InputError(
            f"data.partition.classes_per_client is {classes_per_client}, but the dataset has {classes} classes; "
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
    """Give `classes_per_client` classes to each client. Return the sample indices of each client, and notes.

    `least` is the smallest reasonable number of samples of a client; only unbalanced partitions use it.
    """
    check_classes_per_client(classes_per_client, classes)
    if variant == "shards":
        if not balance:
            raise InputError(
                "data.partition.balance is false, but variant 'shards' creates equal shards; remove the option"
            )
        return _shards(labels, clients, rng, classes_per_client), []
    if variant == "pfllib":
        clients_by_class = _assign_classes_pfllib(classes, clients, classes_per_client)
    else:
        clients_by_class = _assign_classes_first_deterministic(classes, clients, classes_per_client, rng)
    assignment = _Assignment(labels, classes, clients, rng)
    minimum = least / classes
    for label, members in enumerate(clients_by_class):
        if members:
            count = len(assignment.by_class[label])
            assignment.assign(label, members, _split_counts(count, members, label, balance, minimum, rng))
    notes = _fewer_classes_note(clients_by_class, clients, classes_per_client)
    unused = [label for label, members in enumerate(clients_by_class) if not members]
    if unused and not cover_all:
        count = sum(len(assignment.by_class[label]) for label in unused)
        notes.append(
            f"no client holds {_enumerate(unused)}: {count} samples are unused (set cover_all: true to use them)"
        )
    elif unused:
        _assign_to_smallest_clients(assignment, unused, clients * classes_per_client, classes)
        notes.append(
            f"{_enumerate(unused)} went to the clients with fewest samples, so these clients hold more classes"
        )
    return assignment.indices(), notes


def _assign_classes_pfllib(classes: int, clients: int, classes_per_client: int) -> list[list[int]]:
    """Return the clients of each class, as PFLlib assigns them.

    With N clients, C classes and m classes per client, PFLlib gives each class to the first ceil(N/C * m) clients, in
    id order, that hold fewer than m classes. These clients form a block that takes the same m classes, so class c
    belongs to block c // m. Classes of blocks beyond the last client are unused.
    """
    block_size = -(-clients * classes_per_client // classes)
    starts = [label // classes_per_client * block_size for label in range(classes)]
    return [list(range(start, min(start + block_size, clients))) for start in starts]


def _assign_classes_first_deterministic(
    classes: int, clients: int, classes_per_client: int, rng: np.random.Generator
) -> list[list[int]]:
    """Return the clients of each class. Client i holds class i mod C; its other classes are random and distinct."""
    clients_by_class: list[list[int]] = [[] for _ in range(classes)]
    for client in range(clients):
        first = client % classes
        others = rng.permutation(np.delete(np.arange(classes), first))[: classes_per_client - 1]
        for label in (first, *others.tolist()):
            clients_by_class[label].append(client)
    return clients_by_class


def _split_counts(
    count: int, clients: list[int], label: int, balance: bool, minimum: float, rng: np.random.Generator
) -> list[int]:
    """Return how many of the `count` samples of a class each client gets. The last client gets the remainder."""
    if count < len(clients):
        raise InputError(
            f"data.partition: class {label} has {count} samples for {len(clients)} clients, so client "
            f"{clients[count]} would get none of it; use more samples, fewer clients or fewer classes per client"
        )
    mean = count / len(clients)
    if balance:
        counts = [count // len(clients)] * (len(clients) - 1)
    else:
        # An integer in [max(mean/10, least/C), mean); the interval has at least one value even for tiny classes.
        highest = max(math.ceil(mean) - 1, 1)
        lowest = min(math.ceil(max(mean / 10, minimum)), highest)
        counts = rng.integers(lowest, highest, size=len(clients) - 1, endpoint=True).tolist()
    return [*counts, count - sum(counts)]


def _fewer_classes_note(clients_by_class: list[list[int]], clients: int, classes_per_client: int) -> list[str]:
    class_counts = np.bincount([client for members in clients_by_class for client in members], minlength=clients)
    fewer = np.flatnonzero(class_counts < classes_per_client).tolist()
    if not fewer:
        return []
    hold = "holds" if len(fewer) == 1 else "hold"
    return [
        f"{_enumerate(fewer, 'client', 'clients')} {hold} fewer than {classes_per_client} classes: none were left"
    ]


def _assign_to_smallest_clients(assignment: _Assignment, unused: list[int], slots: int, classes: int) -> None:
    """Split each unused class evenly between the clients with fewest samples, ceil(slots / classes) of them."""
    for label in unused:
        count = len(assignment.by_class[label])
        sizes = assignment.sizes()
        smallest_first = sorted(range(len(sizes)), key=lambda client: (sizes[client], client))
        members = sorted(smallest_first[: min(-(-slots // classes), count)])
        if members:
            counts = [len(chunk) for chunk in np.array_split(np.arange(count), len(members))]
            assignment.assign(label, members, counts)


def _shards(labels: Ints, clients: int, rng: np.random.Generator, shards_per_client: int) -> list[Ints]:
    """Sort the samples by label, cut them into N*m shards, and give m random shards to each client."""
    total = clients * shards_per_client
    if total > len(labels):
        raise InputError(
            f"data.partition: {clients} clients with {shards_per_client} shards each need {total} samples, but there "
            f"are {len(labels)}, so client {len(labels) // shards_per_client} would get too few; use fewer clients "
            "or more samples"
        )
    order = rng.permutation(len(labels))
    shards = np.array_split(order[np.argsort(labels[order], kind="stable")], total)
    shards_by_client = rng.permutation(total).reshape(clients, shards_per_client)
    return [np.concatenate([shards[shard] for shard in chosen]) for chosen in shards_by_client]


def pfedhn(
    labels: Ints,
    classes: int,
    clients: int,
    rng: np.random.Generator,
    *,
    classes_per_client: int,
    extra_offer: bool,
) -> tuple[list[Ints], list[str]]:
    """Cut each class into uneven chunks (offers); clients in turn take the classes with most offers left.

    Return the sample indices of each client, and notes.
    """
    check_classes_per_client(classes_per_client, classes)
    offers = clients * classes_per_client // classes + int(extra_offer)
    if offers * classes < clients * classes_per_client:
        raise InputError(
            f"data.partition: {classes} classes with {offers} offers each are {offers * classes} offers, but "
            f"{clients} clients need {clients * classes_per_client}; set extra_offer to true or change "
            "the number of clients"
        )
    assignment = _Assignment(labels, classes, clients, rng)
    weights = rng.uniform(0.4, 0.6, size=(classes, offers))
    cumulative = np.cumsum(weights / weights.sum(axis=1, keepdims=True), axis=1)
    remaining = np.full(classes, offers)
    for client in range(clients):
        # Random keys break ties between classes with the same number of offers left.
        chosen = np.lexsort((rng.random(classes), -remaining))[:classes_per_client]
        for label in chosen.tolist():
            _assign_offer(assignment, client, label, cumulative[label], offers - int(remaining[label]))
        remaining[chosen] -= 1
    unused = len(labels) - sum(assignment.sizes())
    notes = [f"{unused} samples are unused: no client took their offers"] if unused else []
    return assignment.indices(), notes


def _assign_offer(assignment: _Assignment, client: int, label: int, cumulative: np.ndarray, offer: int) -> None:
    """Assign one offer of a class to a client. `cumulative` holds the cumulative fractions of the offers."""
    indices = assignment.by_class[label]
    ends = [0, *np.floor(cumulative * len(indices) + 1e-9).astype(np.int64).tolist()]
    if ends[offer] == ends[offer + 1]:
        raise InputError(
            f"data.partition: class {label} has {len(indices)} samples for {len(cumulative)} offers, so client "
            f"{client} would get none of it; use more samples, fewer clients or fewer classes per client"
        )
    assignment.chunks[client].append(indices[ends[offer] : ends[offer + 1]])


def _enumerate(numbers: list[int], singular: str = "class", plural: str = "classes", limit: int = 12) -> str:
    """Return a text such as "classes 3, 5", shortened after `limit` numbers."""
    text = ", ".join(str(number) for number in numbers[:limit])
    more = f" and {len(numbers) - limit} more" if len(numbers) > limit else ""
    return f"{singular if len(numbers) == 1 else plural} {text}{more}"
