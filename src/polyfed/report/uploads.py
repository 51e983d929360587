"""Uploads of the clients of a run, summed by step and message field."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class UploadSummary:
    """One field of the replies to one client step, summed over a run."""

    step: str
    name: str  # of the field
    messages: int = 0
    bytes: int = 0
    bytes_by_client: dict[str, int] = field(default_factory=dict)
    messages_by_client: dict[str, int] = field(default_factory=dict)
    shapes: set[str] = field(default_factory=set)
    shapes_by_client: dict[str, set[str]] = field(default_factory=dict)

    @property
    def shape(self) -> str:
        """The shape of the field, or its smallest and largest shape."""
        shapes = sorted(map(str, self.shapes), key=lambda text: (len(text), text))
        return shapes[0] if len(shapes) == 1 else f"{shapes[0]} to {shapes[-1]}"


def summarise_uploads(events: Iterable[Mapping[str, Any]]) -> list[UploadSummary]:
    """Sum `left` events by step and field, in order of first appearance."""
    summaries: dict[tuple[str, str], UploadSummary] = {}
    for event in events:
        client, step, shapes = str(event["client"]), event["step"], event.get("shapes", {})
        for name, size in event["fields"].items():
            summary = summaries.get((step, name))
            if summary is None:
                summary = summaries[step, name] = UploadSummary(step, name)
            summary.messages += 1
            summary.bytes += size
            summary.bytes_by_client[client] = summary.bytes_by_client.get(client, 0) + size
            summary.messages_by_client[client] = summary.messages_by_client.get(client, 0) + 1
            summary.shapes_by_client.setdefault(client, set()).add(shapes.get(name, ""))
    for summary in summaries.values():
        summary.shapes = set().union(*summary.shapes_by_client.values())
    return list(summaries.values())


def uploads_of_client(uploads: Iterable[UploadSummary], client: str) -> list[UploadSummary]:
    """Restrict upload summaries to one client."""
    return [
        UploadSummary(
            one.step,
            one.name,
            one.messages_by_client[client],
            one.bytes_by_client[client],
            {client: one.bytes_by_client[client]},
            {client: one.messages_by_client[client]},
            one.shapes_by_client[client],
            {client: one.shapes_by_client[client]},
        )
        for one in uploads
        if client in one.bytes_by_client
    ]


def describe_protection(config: Mapping[str, Any], name: str) -> str | None:
    """Describe how a field was protected before upload. Return None if it was not protected."""
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
        each = " per release" if settings.get("per_release") and not measured else ""
        parts.append(f"noise for epsilon {settings['epsilon']}{delta}{each}")
    if settings.get("noise") is not None:
        parts.append(f"noise of {settings['noise']} times the sensitivity")
    description = " and ".join(parts)
    return (f"{description} (measured sensitivity: no guarantee)" if measured else description) or None


def describe_privacy_cost(privacy: Mapping[str, Any], clients: Iterable[str]) -> list[str]:
    """Describe the privacy budget that some clients have spent, from the privacy entry of a result."""
    clients, by_client = list(clients), privacy.get("clients", {})
    costs = [(by_client[c]["epsilon"], by_client[c]["delta"]) for c in clients if c in by_client]
    bounded = [(epsilon, delta) for epsilon, delta in costs if epsilon is not None]
    adjacency = next((by_client[c].get("holds_for") for c in clients if c in by_client), None)
    sentences = []
    if privacy.get("no_epsilon"):
        sentences.append(f"The run as a whole has no epsilon: {privacy['no_epsilon']}.")
    if bounded:
        low, high = min(e for e, _ in bounded), max(e for e, _ in bounded)
        amount = f"{high:.4g}" if f"{low:.4g}" == f"{high:.4g}" else f"{low:.4g} to {high:.4g} by client"
        sentences.append(
            f"Privacy spent in the whole run, all protected fields together: epsilon {amount} at delta "
            f"{bounded[0][1]:g}{f', for {adjacency}' if adjacency else ''}. This does not cover unprotected fields, "
            "and other runs on the same data add to it."
        )
    for name, cost in privacy.get("fields", {}).items():
        if name in privacy.get("no_guarantee", ()):
            sentences.append(
                f"'{name}' has noise but no guarantee: its sensitivity was measured (a heuristic), not bounded."
            )
            continue
        sentences.append(
            f"'{name}' alone: epsilon {cost['epsilon']:.4g} at delta {cost['delta']:g}, for {cost['holds_for']}."
        )
        if cost.get("not_protected"):
            sentences.append(f"Uploaded with '{name}' without protection: {cost['not_protected']}.")
    return sentences
