"""Summarise the rounds of a finished run into the content of `result.json`."""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from polyfed.config import Config
from polyfed.config.code_digest import config_hash
from polyfed.core.codec import encode
from polyfed.core.payload import Value
from polyfed.guards.privacy import PrivacyGuard
from polyfed.guards.privacy_cost import privacy_report
from polyfed.machine import peak_rss
from polyfed.runs.records import KINDS, VERSION, Result, RoundRecord

SECONDS = ("total", "train", "evaluate", "server", "clients")


def summary(
    config: Config,
    history: Sequence[RoundRecord],
    *,
    names: Sequence[str],
    server_state: Mapping[str, Value],
    digests: Mapping[str, str],
    other_memory: int,
    versions: Mapping[str, Any],
    source: str,
    guard: PrivacyGuard | None = None,
) -> Result:
    """Return the result of a finished run from the records of its rounds."""
    by_field = {
        "up": _sum_by_field([record.up for record in history]),
        "down": _sum_by_field([record.down for record in history]),
    }
    uploads = [record.upload_bytes for record in history]
    downloads = [record.download_bytes for record in history]
    return Result(
        {
            "version": VERSION,
            "name": config.run_name,
            "method": config.method["name"],
            "seed": config.seed,
            "rounds": config.rounds,
            "clients": config.clients,
            "config_hash": config_hash(config, versions),
            "versions": dict(versions),
            "data": {"dataset": config.data.dataset, "source": source},
            "accuracy": {kind: _accuracy(kind, history) for kind in KINDS},
            "metrics": _metrics(history),
            "loss": {"by_round": [record.loss for record in history]},
            "bytes": {
                "up": sum(uploads),
                "down": sum(downloads),
                "up_by_round": uploads,
                "down_by_round": downloads,
                "by_field": by_field,
                "overhead": {way: sum(record.overhead[way] for record in history) for way in ("up", "down")},
            },
            "seconds": {
                **{part: round(sum(record.seconds[part] for record in history), 4) for part in SECONDS},
                "by_round": [round(record.seconds["total"], 4) for record in history],
            },
            "memory": {"peak_rss": peak_rss() + other_memory},
            "failures": [failure for record in history for failure in record.failures],
            "state_hash": state_hash(names, server_state, digests),
            **({} if guard is None else {"privacy": _privacy(guard, history, names, by_field["up"])}),
        }
    )


def _sum_by_field(rounds: Sequence[Mapping[str, int]]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for fields in rounds:
        for name, size in fields.items():
            totals[name] = totals.get(name, 0) + size
    return totals


def _privacy(
    guard: PrivacyGuard, history: Sequence[RoundRecord], names: Sequence[str], uploaded: Mapping[str, int]
) -> dict[str, Any]:
    """Return the privacy budget that was spent, and the fields that were uploaded without protection."""
    protected = {protection.field for protection in guard.protections}
    unprotected = [field for field in uploaded if field not in protected]
    exposed = [field for field in unprotected if field in guard.exposed]
    releases = [record.released or {} for record in history]
    return privacy_report(guard.protections, unprotected, exposed, releases, names)


def _accuracy(kind: str, history: Sequence[RoundRecord]) -> dict[str, Any] | None:
    """Summarise one kind of accuracy; None if it was never measured. Rounds without a measurement have None."""
    by_round = [record.accuracy_value(kind) for record in history]
    measured = [(value, number) for number, value in enumerate(by_round, 1) if value is not None]
    if not measured:
        return None
    best = max(measured, key=lambda pair: (pair[0], -pair[1]))
    last = history[measured[-1][1] - 1].accuracy
    by_client = last[kind].by_client
    values = [value for value in by_client if value is not None]
    return {
        "final": measured[-1][0],
        "best": best[0],
        "best_round": best[1],
        "std_over_clients": statistics.pstdev(values) if values else 0.0,
        "by_client": list(by_client),
        "by_round": by_round,
        # other ways of predicting with the same models, for methods that have several
        "also": {
            other.removeprefix(f"{kind} by "): {
                "final": accuracy.value,
                "by_round": [record.accuracy_value(other) for record in history],
            }
            for other, accuracy in last.items()
            if other.startswith(f"{kind} by ")
        },
    }


def _metrics(history: Sequence[RoundRecord]) -> dict[str, dict[str, Any]]:
    """Summarise all metrics by kind of accuracy, and the confusion matrices of the last round."""
    last = next((record for record in reversed(history) if record.metrics), None)
    if last is None:
        return {}
    summaries: dict[str, dict[str, Any]] = {
        kind: {
            name: {
                "final": one.value,
                "by_client": list(one.by_client),
                "by_round": [record.metric_value(kind, name) for record in history],
            }
            for name, one in by.items()
        }
        for kind, by in last.metrics.items()
    }
    for kind, matrix in last.confusion.items():
        summaries[kind]["confusion"] = matrix
    return summaries


def state_hash(names: Sequence[str], server_state: Mapping[str, Value], digests: Mapping[str, str]) -> str:
    """Return a sha256 over the states of the server and of all clients; clients without one count as 'initial'."""
    clients = [[name, digests.get(name, "initial")] for name in names]
    text = json.dumps([encode(server_state).digest, clients])
    return hashlib.sha256(text.encode()).hexdigest()
