"""Replay of past rounds: which images are used again, and which client holds which rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
RowCounts = Mapping[str, int]  # a client's images by round


def newest(entries: Mapping[str, T], limit: int | None) -> dict[str, T]:
    """Return the `limit` newest entries by key, or all of them, oldest first."""
    keys = sorted(entries)
    return {key: entries[key] for key in (keys if limit is None else keys[max(0, len(keys) - limit) :])}


def replay_batches(
    counts: RowCounts, batches: int, batch: int, stream: Callable[[str], torch.Generator]
) -> list[tuple[str, Tensor]]:
    """Return `batches` batches, each from one past round, as round keys and rows.

    Rounds take turns, so that their numbers of batches differ by at most one. `stream` returns the random stream of a
    round: equal streams give equal rows, so that teachers and students agree on them.
    """
    rounds = sorted(counts)
    rows = {key: _shuffled_batches(counts[key], batch, stream(key)) for key in rounds}
    order = [rounds[turn % len(rounds)] for turn in range(batches)] if rounds else []
    return [(key, next(rows[key])) for key in order]


def replay_rows(counts: RowCounts, batches: int, batch: int) -> int:
    """Return the total number of rows in `replay_batches`."""
    lengths = [min(batch, counts[key]) for key in sorted(counts)]
    return sum(lengths[turn % len(lengths)] for turn in range(batches)) if lengths else 0


def _shuffled_batches(size: int, batch: int, stream: torch.Generator) -> Iterator[Tensor]:
    """Yield batches of rows of equal length without end, in a new order for every pass."""
    length = min(batch, size)
    while True:
        order = torch.randperm(size, generator=stream)
        yield from torch.split(order[: size - size % length], length)


@dataclass
class ReplayIndex:
    """The past rounds that each client holds, at most `limit`, and each client's number of images in them."""

    limit: int | None = None
    sizes: dict[str, dict[str, int]] = field(default_factory=dict)  # images by round and client
    held: dict[str, list[str]] = field(default_factory=dict)  # rounds by client

    def missing_rounds(self, client: str) -> list[str]:
        """Return the recent rounds that the client does not hold."""
        return [key for key in newest(self.sizes, self.limit) if key not in self.held.get(client, [])]

    def row_counts(self, client: str, received: Iterable[str] = ()) -> dict[str, int]:
        """Return the client's images in each round that it holds after it has received more rounds."""
        held = newest(dict.fromkeys([*self.held.get(client, []), *received]), self.limit)
        return {key: self.sizes[key][client] for key in held if client in self.sizes.get(key, {})}

    def add_round(self, key: str, rows: Mapping[str, int]) -> None:
        """Add a finished round with the number of images of each client."""
        self.sizes = newest({**self.sizes, key: dict(rows)}, None)

    def add_held(self, client: str, keys: Iterable[str]) -> None:
        """Note that the client received rounds; it keeps the newest."""
        self.held[client] = list(newest(dict.fromkeys([*self.held.get(client, []), *keys]), self.limit))

    def prune(self, clients: Iterable[str]) -> list[str]:
        """Return the rounds that some of the clients miss, and forget rounds that no client holds or misses."""
        missing = {key for client in clients for key in self.missing_rounds(client)}
        held = {key for keys in self.held.values() for key in keys}
        self.sizes = {key: rows for key, rows in self.sizes.items() if key in missing | held}
        return sorted(missing)

    def to_state(self) -> dict[str, dict[str, dict[str, int]]]:
        """Return the index as a tree of numbers for the server's state."""
        return {"sizes": self.sizes, "held": {client: dict.fromkeys(keys, 1) for client, keys in self.held.items()}}

    @staticmethod
    def from_state(state: object, limit: int | None) -> ReplayIndex:
        """Restore an index from the result of `to_state`."""
        trees = {name: _mapping(tree) for name, tree in _mapping(state).items()}
        sizes = {key: {name: int(n) for name, n in _mapping(rows).items()} for key, rows in trees["sizes"].items()}
        return ReplayIndex(limit, sizes, {client: sorted(_mapping(keys)) for client, keys in trees["held"].items()})


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
