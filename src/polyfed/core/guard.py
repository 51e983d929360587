"""What stands between a client's step and the bytes that leave: the host asks it about every reply."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from polyfed.core.client import Client
from polyfed.core.engine import Call
from polyfed.core.payload import Payload, Value

Released = Mapping[str, int]  # how often each protected field has left a client; part of the client's saved state


class Guard(Protocol):
    """Protects replies. A method does not know that it is there."""

    def prepare(self, client: Client, call: Call) -> None:
        """Before the steps run: what they must bound themselves, because a reply no longer shows it."""
        ...

    def protect(
        self, client: Client, call: Call, reply: Mapping[str, Value], msg: Payload, released: Released
    ) -> tuple[dict[str, Value], dict[str, int]]:
        """The reply as it may leave, and how often each field has left with it. Refuses by raising."""
        ...
