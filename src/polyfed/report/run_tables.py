"""What a page says about each run in tables: where it stands, what left its clients, what failed, its settings."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from polyfed.report.run_record import STATES, Record, clean
from polyfed.report.uploads import protection
from polyfed.runs.config_text import flatten, format_value

MIB = 1 << 20
MOST_CLIENTS = 60  # in a table with a line each
MOST_FAILURES = 20
NOT_PROTECTED = "no"


class TableCell(NamedTuple):
    """One cell. `kind` is its class in the page."""

    text: str
    name: bool = False
    best: bool = False
    kind: str = ""


def cell(text: object, *, name: bool = False, best: bool = False, kind: str = "") -> TableCell:
    return TableCell(clean(text, 600), name, best, kind)


@dataclass
class Table:
    """Headings and rows."""

    headings: list[TableCell]
    rows: list[list[TableCell]]
    caption: str = ""
    label: str = ""


@dataclass
class Part:
    """A part of what is said about a run."""

    title: str
    words: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    details: list[str] = field(default_factory=list)


def table_of(
    headings: Sequence[str], rows: Iterable[Sequence[object]], *, names: int = 1, caption: str = "", label: str = ""
) -> Table:
    """A table whose first columns are words, and whose others are numbers."""
    return Table(
        [cell(text, name=at < names) for at, text in enumerate(headings)],
        [[cell(value, name=at < names) for at, value in enumerate(row)] for row in rows],
        caption,
        label,
    )


def runs_table(records: Sequence[Record], broken: Mapping[Path, str]) -> Table:
    """Every run in a line, whatever its state."""
    headings = ["run", "method", "data", "state", "seed", "rounds", "personal %", "best", "global %", "best"]
    headings += ["MiB up", "MiB down", "seconds", "failures"]
    rows = []
    for record in records:
        accuracies = [f(kind) for kind in ("personal", "global") for f in (record.last, record.best)]
        rows.append(
            [
                *(cell(text, name=True) for text in (record.name, record.method, record.dataset)),
                cell(record.state, kind=f"name {record.state}"),
                cell(record.seed),
                cell(f"{len(record.rounds)} of {record.planned}"),
                *(cell("-" if value is None else f"{100 * value:.2f}") for value in accuracies),
                cell(f"{sum(record.up) / MIB:.3f}"),
                cell(f"{sum(record.down) / MIB:.3f}"),
                cell(f"{sum(record.seconds.get('total', [])):.1f}"),
                cell(len(record.failures)),
            ]
        )
    for path, reason in broken.items():
        blank = [cell("-") for _ in headings[4:]]
        rows.append(
            [
                cell(path.name, name=True),
                cell("-"),
                cell(reason, kind="wrap"),
                cell("broken", kind="name broken"),
                *blank,
            ]
        )
    states = sorted({record.state for record in records} - {"finished"})
    caption = "; ".join(f"{state}: {STATES[state]}" for state in states)
    heads = [cell(text, name=at < 4) for at, text in enumerate(headings)]
    return Table(
        heads, rows, f"Accuracies of runs that are not finished are those so far. {caption}" if states else "", "Runs"
    )


def settings_of(record: Record) -> dict[str, str]:
    return {clean(key): clean(format_value(value), 300) for key, value in flatten(record.config)}


def common_settings(records: Sequence[Record]) -> dict[str, str]:
    """What all runs share; of one run, nothing: there it is shown whole."""
    if len(records) < 2:
        return {}
    shared = settings_of(records[0])
    for record in records[1:]:
        own = settings_of(record)
        shared = {key: value for key, value in shared.items() if own.get(key) == value}
    return shared


def parts_of(record: Record, shared: Mapping[str, str]) -> list[Part]:
    parts = [_standing(record), _left(record), _failures(record)]
    own = {key: value for key, value in settings_of(record).items() if key not in shared}
    title = "Settings that are not common to all runs" if shared else "Settings"
    parts.append(Part(title, tables=[table_of(["key", "value"], own.items(), names=2, label="Settings")]))
    return [part for part in parts if part.words or part.tables]


def _standing(record: Record) -> Part:
    why = f" {record.reason}." if record.reason else ""
    part = Part("State", [f"{record.state.capitalize()}: {len(record.rounds)} of {record.planned} rounds.{why}"])
    part.words += [f"Note: {note}" for note in record.notes[:MOST_FAILURES]]
    part.words += [
        f"Round {event.get('round', '?')}: {clean(event['message'], 400)}"
        for event in record.told.get("warning", [])[:MOST_FAILURES]
        if "message" in event
    ]
    return part


def _left(record: Record) -> Part:
    part = Part("What left each client")
    if not record.left:
        part.words.append("Nothing left a client so far." if record.rounds else "No round is finished yet.")
        return part
    rows = [
        [
            clean(left.step),
            clean(left.name),
            clean(left.shape),
            protection(record.config, left.name) or NOT_PROTECTED,
            left.messages,
            len(left.clients),
            f"{left.bytes:,}",
        ]
        for left in record.left
    ]
    headings = ["step", "field", "shape", "protected", "messages", "clients", "bytes"]
    part.tables.append(table_of(headings, rows, names=4, label="What left, by field"))
    if not any(protection(record.config, left.name) for left in record.left):
        part.words.append("No field was clipped or noised: whoever receives these messages sees these values.")
    by_client: dict[str, int] = {}
    for left in record.left:
        for client, size in left.clients.items():
            by_client[client] = by_client.get(client, 0) + size
    sizes = sorted(by_client.values())
    part.words.append(
        f"{len(by_client)} clients sent {sum(sizes):,} bytes of tensors in all: {sizes[0]:,} at least, "
        f"{statistics.median(sizes):,.0f} in the middle and {sizes[-1]:,} at most."
    )
    if len(by_client) <= MOST_CLIENTS:
        models = {share.name: share.model for share in record.shares}
        clients = sorted(by_client, key=lambda name: (len(name), name))
        lines = [
            [clean(name), models.get(name, "-"), *(f"{left.clients.get(name, 0):,}" for left in record.left)]
            for name in clients
        ]
        fields = [f"{clean(left.name)}, bytes" for left in record.left]
        part.tables.append(table_of(["client", "model", *fields], lines, names=2, label="What left, by client"))
    return part


def _failures(record: Record) -> Part:
    """Failures that say the same thing once, with how often and where first."""
    part = Part("Failures")
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for failure in record.failures:
        found.setdefault((str(failure.get("kind")), str(failure.get("message"))), []).append(failure)
    if not found:
        return part
    total = len(record.failures)
    part.words.append(f"{total} answer{'s were' if total > 1 else ' was'} missing or refused.")
    rows = []
    for (kind, message), members in list(found.items())[:MOST_FAILURES]:
        first = members[0]
        where = f"client {first.get('client', '?')}, round {first.get('round', '?')}"
        rows.append([cell(kind, name=True), cell(message, kind="wrap"), cell(where, name=True), cell(len(members))])
        if first.get("detail"):
            part.details.append(str(first["detail"])[-4000:])
    headings = [cell("kind", name=True), cell("what", name=True), cell("first at", name=True), cell("times")]
    part.tables.append(Table(headings, rows, label="Failures"))
    if len(found) > MOST_FAILURES:
        part.words.append(f"The first {MOST_FAILURES} of {len(found)} different ones are shown.")
    return part
