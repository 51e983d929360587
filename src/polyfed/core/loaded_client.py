"""Clients in the memory of a host."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from polyfed.core.client import Client
from polyfed.core.guard import Released


@dataclass
class LoadedClient:
    """A client in memory."""

    client: Client
    version: int
    digest: str
    size: int
    released: Released = field(default_factory=dict)  # if releases are part of the client's state


class LoadedClients:
    """The clients in memory. If they exceed `budget` bytes, the least recently used are dropped."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._by_name: OrderedDict[str, LoadedClient] = OrderedDict()
        self._memory = 0  # bytes of all clients

    def get(self, name: str) -> LoadedClient | None:
        return self._by_name.get(name)

    def add(self, loaded: LoadedClient, state: int) -> None:
        """Add a client with a state of `state` bytes, or a new state of a client that is there."""
        self._by_name[loaded.client.name] = loaded
        self.resize(loaded, state)

    def used(self, name: str) -> None:
        """Record that a client is used now."""
        self._by_name.move_to_end(name)

    def resize(self, loaded: LoadedClient, state: int) -> None:
        """Update the memory use of a client: its state and its data."""
        size = state + loaded.client.train.inputs.nbytes + loaded.client.test.inputs.nbytes
        self._memory += size - loaded.size
        loaded.size = size

    def drop(self, name: str) -> None:
        dropped = self._by_name.pop(name, None)
        self._memory -= dropped.size if dropped is not None else 0

    def drop_all(self) -> None:
        for name in list(self._by_name):
            self.drop(name)

    def free_memory(self, keep: str) -> None:
        """Drop the least recently used clients, except `keep`, until the others fit into the budget."""
        while self._memory > self._budget and len(self._by_name) > 1:
            self.drop(next(name for name in self._by_name if name != keep))
