"""From what was measured in every round to `result.json`."""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from polyfed.config import Config
from polyfed.core.codec import encode
from polyfed.core.payload import Value
from polyfed.guards.privacy import PrivacyGuard
from polyfed.guards.privacy_cost import spent
from polyfed.machine import peak_rss


def summary(
    config: Config,
    history: Sequence[Mapping[str, Any]],
    *,
    names: Sequence[str],
    server_state: Mapping[str, Value],
    digests: Mapping[str, str],
    other_memory: int,
    versions: Mapping[str, str],
    source: str,
    guard: PrivacyGuard | None = None,
) -> dict[str, Any]:
    """The summary of a finished run."""
    by_field: dict[str, dict[str, int]] = {"up": {}, "down": {}}
    for record in history:
        for way, totals in by_field.items():
            for name, size in record[way].items():
                totals[name] = totals.get(name, 0) + size
    ups = [sum(record["up"].values()) for record in history]
    downs = [sum(record["down"].values()) for record in history]
    return {
        "name": config.run_name,
        "method": config.method["name"],
        "seed": config.seed,
        "rounds": config.rounds,
        "clients": config.clients,
        "config_hash": config.hash(),
        "versions": dict(versions),
        "data": {"dataset": config.data.dataset, "source": source},
        "accuracy": {kind: _accuracy(kind, history) for kind in ("personal", "global")},
        "loss": {"by_round": [record["loss"] for record in history]},
        "bytes": {
            "up": sum(ups),
            "down": sum(downs),
            "up_by_round": ups,
            "down_by_round": downs,
            "by_field": by_field,
            "overhead": {way: sum(record["overhead"][way] for record in history) for way in ("up", "down")},
        },
        "seconds": {
            **{
                part: round(sum(record["seconds"][part] for record in history), 4)
                for part in ("total", "train", "evaluate", "server", "clients")
            },
            "by_round": [round(record["seconds"]["total"], 4) for record in history],
        },
        "memory": {"peak_rss": peak_rss() + other_memory},
        "failures": [failure for record in history for failure in record["failures"]],
        "state_hash": state_hash(names, server_state, digests),
        **({} if guard is None else {"privacy": _privacy(guard, history, names, by_field["up"])}),
    }


def _privacy(
    guard: PrivacyGuard, history: Sequence[Mapping[str, Any]], names: Sequence[str], sent: Mapping[str, int]
) -> dict[str, Any]:
    """What was spent, and which fields left without any protection."""
    protected = {one.field for one in guard.protections}
    return spent(guard.protections, [field for field in sent if field not in protected], history, names)


def _accuracy(kind: str, history: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """One kind of accuracy; None for what was not measured. Rounds without a measurement have null."""
    by_round = [record["accuracy"].get(kind, {}).get("value") for record in history]
    measured = [(value, number) for number, value in enumerate(by_round, 1) if value is not None]
    if not measured:
        return None
    best = max(measured, key=lambda pair: (pair[0], -pair[1]))
    last = history[measured[-1][1] - 1]["accuracy"]
    by_client = last[kind]["by_client"]
    known = [value for value in by_client if value is not None]
    return {
        "final": measured[-1][0],
        "best": best[0],
        "best_round": best[1],
        "std_over_clients": statistics.pstdev(known) if known else 0.0,
        "by_client": by_client,
        "by_round": by_round,
        # other ways of predicting with the same models, where the method has any
        "also": {
            other.removeprefix(f"{kind} by "): {
                "final": facts["value"],
                "by_round": [record["accuracy"].get(other, {}).get("value") for record in history],
            }
            for other, facts in last.items()
            if other.startswith(f"{kind} by ")
        },
    }


def state_hash(names: Sequence[str], server_state: Mapping[str, Value], digests: Mapping[str, str]) -> str:
    """sha256 over the server's state and every client's; a client that was never called counts as 'initial'."""
    clients = [[name, digests.get(name, "initial")] for name in names]
    text = json.dumps([encode(server_state).digest, clients])
    return hashlib.sha256(text.encode()).hexdigest()
