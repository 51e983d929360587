"""When failures of clients end a run, and when a client is left out of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polyfed.config.sections import FailuresConfig
from polyfed.errors import RunError
from polyfed.runs.records import RoundRecord


@dataclass
class FailurePolicy:
    """What failures of clients mean for the rounds that follow."""

    settings: FailuresConfig
    all_selected_clients: Callable[[int], tuple[str, ...]]  # clients of a round, with those that are left out
    left_out: frozenset[str] = frozenset()  # clients whose replies were rejected too often

    def selected_clients(self, number: int) -> tuple[str, ...]:
        """Return the clients of a round."""
        return tuple(name for name in self.all_selected_clients(number) if name not in self.left_out)

    def update(self, history: Sequence[RoundRecord]) -> list[str]:
        """Take the rounds so far into account. Return notes for the user. Raise RunError if the run must end."""
        before, self.left_out = self.left_out, left_out(history, self.settings.strikes)
        if history and not isinstance(self.settings.min_replies, int):
            check_failures(history, self.all_selected_clients)
        return [
            f"client {client} is left out from now on: its replies were rejected in {self.settings.strikes} rounds"
            for client in sorted(self.left_out - before)
        ]


def check_failures(history: Sequence[RoundRecord], selected_clients: Callable[[int], Collection[str]]) -> None:
    """Raise RunError if a client has failed in every round so far, in two rounds or more.

    A run that requires a number of replies, not a share, continues without such a client and does not call this.
    """
    # Failed evaluations do not count: a site may refuse them. Neither do rejected replies: see `left_out`.
    failures = [f for record in history for f in record.failures if _counts(f)]
    for client in dict.fromkeys(str(f["client"]) for f in history[-1].failures if _counts(f)):
        own = [f for f in failures if f["client"] == client]
        called = {record.round for record in history if client in selected_clients(record.round)}
        if len(called) >= 2 and called <= {f["round"] for f in own}:
            raise RunError(
                f"client {client} failed in each of its {len(called)} rounds; its first failure, in step "
                f"'{'+'.join(own[0]['steps'])}' of round {own[0]['round']}, is: {own[0]['message']} (to continue "
                "without such clients, set failures.min_replies to a number of clients)"
            )


def _counts(failure: Mapping[str, Any]) -> bool:
    return tuple(failure["steps"]) != ("evaluate",) and failure["kind"] != "rejected"


def left_out(history: Sequence[RoundRecord], strikes: int) -> frozenset[str]:
    """Return the clients whose replies the server rejected in `strikes` rounds or more."""
    rejected = {(f["client"], f["round"]) for r in history for f in r.failures if f["kind"] == "rejected"}
    rounds = Counter(str(client) for client, _ in rejected)
    return frozenset(client for client, count in rounds.items() if count >= strikes)
