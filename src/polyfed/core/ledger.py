"""Versions of client states: the current one of every client, and older ones that may still be stored."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Ledger:
    """Current state version of every client. A version is the number of the call that produced the state."""

    calls: int = 0  # calls made so far
    versions: dict[str, int] = field(default_factory=dict)  # by client; absent: the initial state
    digests: dict[str, str] = field(default_factory=dict)
    alive: dict[str, list[int]] = field(default_factory=dict)  # versions that may exist in the store, by client

    def copy(self) -> Ledger:
        alive = {client: list(versions) for client, versions in self.alive.items()}
        return Ledger(self.calls, dict(self.versions), dict(self.digests), alive)
