"""The interface between a host and the federation that creates its clients."""

from __future__ import annotations

from typing import Protocol

from polyfed.core.client import Client
from polyfed.core.guard import Guard
from polyfed.core.method import Method
from polyfed.core.place import Place
from polyfed.training import Samples


class ClientMaker(Protocol):
    """Factory of clients in their initial state."""

    @property
    def seed(self) -> int: ...

    @property
    def guard(self) -> Guard | None:
        """Applied to every reply before it is encoded."""
        ...

    @property
    def secret(self) -> str:
        """Secret of the clients' site; empty in a simulation."""
        ...

    method: Method
    global_test: Samples | None
    place: Place  # of clients

    def make_client(self, name: str) -> Client: ...
