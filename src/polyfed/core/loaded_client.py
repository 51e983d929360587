"""A client in the memory of a host."""

from __future__ import annotations

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
