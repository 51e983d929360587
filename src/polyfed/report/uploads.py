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
    measured = settings.get("sensitivity") == "measured"
    if settings.get("epsilon") is not None:
        delta = f", delta {settings['delta']}" if settings.get("delta") is not None else ""
        each = " in every release" if settings.get("per_release") and not measured else ""
        parts.append(f"noise for epsilon {settings['epsilon']}{delta}{each}")
    if settings.get("noise") is not None:
        parts.append(f"noise of {settings['noise']} times the sensitivity")
    said = " and ".join(parts)
    return (f"{said} (measured sensitivity: no guarantee)" if measured else said) or None


def spending(privacy: Mapping[str, Any], clients: Iterable[str]) -> list[str]:
    """What a result says of the privacy that was spent, in sentences, for some clients."""
    clients, by_client = list(clients), privacy.get("clients", {})
    costs = [(by_client[c]["epsilon"], by_client[c]["delta"]) for c in clients if c in by_client]
    known = [(epsilon, delta) for epsilon, delta in costs if epsilon is not None]
    change = next((by_client[c].get("holds_for") for c in clients if c in by_client), None)
    said = []
    if known:
        low, high = min(e for e, _ in known), max(e for e, _ in known)
        amount = f"{high:.4g}" if f"{low:.4g}" == f"{high:.4g}" else f"{low:.4g} to {high:.4g} by client"
        said.append(
            f"Privacy spent in the whole run, all protected fields together: epsilon {amount} at delta "
            f"{known[0][1]:g}{f', for {change}' if change else ''}. It says nothing of what is not protected, and "
            "what other runs on the same data spent comes on top."
        )
    for name, facts in privacy.get("fields", {}).items():
        if name in privacy.get("no_guarantee", ()):
            said.append(
                f"'{name}' has noise but no guarantee: its sensitivity was measured (a heuristic), not bounded."
            )
            continue
        said.append(
            f"'{name}' alone: epsilon {facts['epsilon']:.4g} at delta {facts['delta']:g}, for {facts['holds_for']}."
        )
        if facts.get("not_protected"):
            said.append(f"With '{name}' leaves, as it is: {facts['not_protected']}.")
    return said
