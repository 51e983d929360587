"""Which past samples are looked at again: evenly from every past round, the same by everybody, and who holds what."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def newest(entries: Mapping[str, T], limit: int | None) -> dict[str, T]:
    """The last `limit` entries by name, or all; the oldest go first."""
    kept = sorted(entries)
    return {name: entries[name] for name in (kept if limit is None else kept[max(0, len(kept) - limit) :])}


def reviewed(
    sizes: Mapping[str, int], batches: int, batch: int, stream: Callable[[str], torch.Generator]
) -> list[tuple[str, Tensor]]:
    """So many batches, each from one past round: its name, and the rows.

    Rounds take turns, so that their numbers of batches differ by one at most. `stream` gives the draws for a round by
    its name: who has the same streams gets the same rows.
    """
    rounds = sorted(sizes)
    rows = {name: _endless(sizes[name], batch, stream(name)) for name in rounds}
    turns = [rounds[turn % len(rounds)] for turn in range(batches)] if rounds else []
    return [(name, next(rows[name])) for name in turns]


def reviewed_rows(sizes: Mapping[str, int], batches: int, batch: int) -> int:
    """How many rows that are."""
    lengths = [min(batch, sizes[name]) for name in sorted(sizes)]
    return sum(lengths[turn % len(lengths)] for turn in range(batches)) if lengths else 0


def _endless(size: int, batch: int, stream: torch.Generator) -> Iterator[Tensor]:
    """Rows in batches of one length without end, in a new order each time round."""
    length = min(batch, size)
    while True:
        order = torch.randperm(size, generator=stream)
        yield from torch.split(order[: size - size % length], length)


@dataclass
class ReplayIndex:
    """Who holds which past rounds, at most `limit` each, and how many rows everybody had in them."""

    limit: int | None = None
    sizes: dict[str, dict[str, int]] = field(default_factory=dict)  # rows by round and client
    held: dict[str, list[str]] = field(default_factory=dict)  # rounds by client

    def owed(self, client: str) -> list[str]:
        """Rounds that the client missed."""
        return [name for name in newest(self.sizes, self.limit) if name not in self.held.get(client, [])]

    def plan(self, client: str, more: Iterable[str] = ()) -> dict[str, int]:
        """The rounds in which the client had rows and that it holds, with what it gets now, and how many rows."""
        holds = newest(dict.fromkeys([*self.held.get(client, []), *more]), self.limit)
        return {name: self.sizes[name][client] for name in holds if client in self.sizes.get(name, {})}

    def put(self, name: str, rows: Mapping[str, int]) -> None:
        """A round is over, in which these clients had so many rows."""
        self.sizes = newest({**self.sizes, name: dict(rows)}, None)

    def took(self, client: str, names: Iterable[str]) -> None:
        """The client has got these rounds, and keeps the newest."""
        self.held[client] = list(newest(dict.fromkeys([*self.held.get(client, []), *names]), self.limit))

    def wanted(self, clients: Iterable[str]) -> list[str]:
        """Rounds that somebody still lacks. What nobody holds nor lacks is forgotten."""
        lacking = {name for client in clients for name in self.owed(client)}
        somewhere = {name for names in self.held.values() for name in names}
        self.sizes = {name: rows for name, rows in self.sizes.items() if name in lacking | somewhere}
        return sorted(lacking)

    def state(self) -> dict[str, dict[str, dict[str, int]]]:
        """As a tree of numbers, for a server's memory."""
        return {"sizes": self.sizes, "held": {client: dict.fromkeys(names, 1) for client, names in self.held.items()}}

    @staticmethod
    def of(state: object, limit: int | None) -> ReplayIndex:
        """From what `state` gave."""
        said = {name: _nested(tree) for name, tree in _nested(state).items()}
        sizes = {name: {k: int(n) for k, n in _nested(rows).items()} for name, rows in said["sizes"].items()}
        return ReplayIndex(limit, sizes, {client: sorted(_nested(names)) for client, names in said["held"].items()})


def _nested(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
