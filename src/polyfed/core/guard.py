"""The guard interface: the host passes every reply through a guard before it is encoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from polyfed.core.client import Client
from polyfed.core.engine import Call
from polyfed.core.payload import Payload, Value

# Ids of a client's releases, by protected field. Sending the same release again does not add an id.
# At a site with a secret they are kept in the store, so that a coordinator cannot reset them by naming an old state.
# In a simulation they are part of the client's saved state, which moves between workers.
Released = Mapping[str, Sequence[str]]


@runtime_checkable
class ReleaseLog(Protocol):
    """A store of clients' releases that is independent of their state versions."""

    def read_releases(self, client: str) -> bytes:
        """Return the stored releases, or empty bytes if there are none."""
        ...

    def write_releases(self, client: str, data: bytes) -> None:
        """Store the releases durably before returning."""
        ...


class Guard(Protocol):
    """Protection of replies, invisible to methods."""

    def prepare(self, client: Client, call: Call) -> None:
        """Set bounds that the steps must apply themselves. Called before the steps run."""
        ...

    def protect(
        self, client: Client, call: Call, reply: Mapping[str, Value], msg: Payload, released: Released
    ) -> tuple[dict[str, Value], Released]:
        """Return the protected reply and the releases including it. Raise an error if it must not be sent."""
        ...
