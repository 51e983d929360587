"""What left the clients of a run: summed by step and field, over all clients or of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Left:
    """One field of one step's replies, over a run."""

    step: str
    name: str
    messages: int = 0
    bytes: int = 0
    clients: dict[str, int] = field(default_factory=dict)  # bytes by client
    sent: dict[str, int] = field(default_factory=dict)  # messages by client
    shapes: set[str] = field(default_factory=set)
    shapes_by_client: dict[str, set[str]] = field(default_factory=dict)

    @property
    def shape(self) -> str:
        """The shape, or the least and the most of it."""
        some = sorted(map(str, self.shapes), key=lambda text: (len(text), text))
        return some[0] if len(some) == 1 else f"{some[0]} to {some[-1]}"


def summed(records: Iterable[Mapping[str, Any]]) -> list[Left]:
    """By step and field, in the order in which they first left."""
    found: dict[tuple[str, str], Left] = {}
    for record in records:
        client, step, shapes = str(record["client"]), record["step"], record.get("shapes", {})
        for name, size in record["fields"].items():
            left = found.get((step, name))
            if left is None:
                left = found[step, name] = Left(step, name)
            left.messages += 1
            left.bytes += size
            left.clients[client] = left.clients.get(client, 0) + size
            left.sent[client] = left.sent.get(client, 0) + 1
            left.shapes_by_client.setdefault(client, set()).add(shapes.get(name, ""))
    for left in found.values():
        left.shapes = set().union(*left.shapes_by_client.values())
    return list(found.values())


def only(fields: Iterable[Left], client: str) -> list[Left]:
    """What left one client."""
    return [
        Left(
            one.step,
            one.name,
            one.sent[client],
            one.clients[client],
            {client: one.clients[client]},
            {client: one.sent[client]},
            one.shapes_by_client[client],
            {client: one.shapes_by_client[client]},
        )
        for one in fields
        if client in one.clients
    ]


def protection(config: Mapping[str, Any], name: str) -> str | None:
    """How a field was protected before it left, in words; None where it was not."""
    privacy = config.get("privacy")
    settings = privacy.get(name) if isinstance(privacy, Mapping) else None
    if not isinstance(settings, Mapping):
        return None
    parts = []
    if settings.get("clip") is not None:
        parts.append(f"clipped to norm {settings['clip']}")
    if settings.get("epsilon") is not None:
        delta = f", delta {settings['delta']}" if settings.get("delta") is not None else ""
        parts.append(f"noise for epsilon {settings['epsilon']}{delta}")
    return " and ".join(parts) or None
