"""What stands between a client's step and the bytes that leave: the host asks it about every reply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from polyfed.core.client import Client
from polyfed.core.engine import Call
from polyfed.core.payload import Payload, Value

# By protected field, the names of its distinct releases by a client; the same one sent again is none.
# Where the client's owner has a secret the store keeps them, out of reach of who names the state to start from;
# in a simulation they are part of the client's saved state, which moves between workers.
Released = Mapping[str, Sequence[str]]


@runtime_checkable
class ReleaseLog(Protocol):
    """A store that keeps what clients have released, whatever state they are brought back to."""

    def read_releases(self, client: str) -> bytes:
        """Empty if there are none yet."""
        ...

    def write_releases(self, client: str, data: bytes) -> None:
        """On the disk when it returns."""
        ...


class Guard(Protocol):
    """Protects replies. A method does not know that it is there."""

    def prepare(self, client: Client, call: Call) -> None:
        """Before the steps run: what they must bound themselves, because a reply no longer shows it."""
        ...

    def protect(
        self, client: Client, call: Call, reply: Mapping[str, Value], msg: Payload, released: Released
    ) -> tuple[dict[str, Value], Released]:
        """The reply as it may leave, and all releases with those in it. Refuses by raising."""
        ...
