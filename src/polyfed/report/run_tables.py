"""Tables of the report about each run: state, uploads, failures and settings."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from polyfed.report.clean_text import clean
from polyfed.report.run_record import STATES, RunRecord
from polyfed.report.uploads import describe_protection
from polyfed.runs.config_text import flatten, format_value

MIB = 1 << 20
MAX_CLIENTS = 60  # in a table with a row per client
MAX_FAILURES = 20
NOT_PROTECTED = "no"


class TableCell(NamedTuple):
    """A cell of a table. `kind` is its CSS class."""

    text: str
    name: bool = False
    best: bool = False
    kind: str = ""


def cell(text: object, *, name: bool = False, best: bool = False, kind: str = "") -> TableCell:
    return TableCell(clean(text, 600), name, best, kind)


@dataclass
class Table:
    """A table with headings, rows and a caption."""

    headings: list[TableCell]
    rows: list[list[TableCell]]
    caption: str = ""
    label: str = ""
    title: str = ""
    breaks: frozenset[int] = frozenset()  # rows that begin a new group


@dataclass
class RunSection:
    """A section about one run."""

    title: str
    text: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    details: list[str] = field(default_factory=list)


def table_of(
    headings: Sequence[str], rows: Iterable[Sequence[object]], *, names: int = 1, caption: str = "", label: str = ""
) -> Table:
    """Build a table whose first `names` columns hold text and whose others hold numbers."""
    return Table(
        [cell(text, name=column < names) for column, text in enumerate(headings)],
        [[cell(value, name=column < names) for column, value in enumerate(row)] for row in rows],
        caption,
        label,
    )


def unique_names(records: Sequence[RunRecord]) -> list[str]:
    """Return the names of runs. Runs with equal names are preceded by the folder that contains them."""
    count = Counter(record.name for record in records)
    return [
        record.name if count[record.name] == 1 else clean(f"{record.path.resolve().parent.name}/{record.name}")
        for record in records
    ]


def runs_table(records: Sequence[RunRecord], broken: Mapping[Path, str]) -> Table:
    """Build the table with a row for every run, in any state."""
    headings = ["run", "method", "data", "state", "seed", "rounds", "personal %", "best", "global %", "best"]
    headings += ["MiB up", "MiB down", "seconds", "failures"]
    rows = []
    for name, record in zip(unique_names(records), records, strict=True):
        accuracies = [
            read(kind) for kind in ("personal", "global") for read in (record.final_accuracy, record.best_accuracy)
        ]
        rows.append(
            [
                *(cell(text, name=True) for text in (name, record.method, record.dataset)),
                cell(record.state, kind=f"name {record.state}"),
                cell(record.seed),
                cell(f"{len(record.rounds)} of {record.planned_rounds}"),
                *(cell("-" if value is None else f"{100 * value:.2f}") for value in accuracies),
                cell(f"{sum(record.upload_bytes) / MIB:.3f}"),
                cell(f"{sum(record.download_bytes) / MIB:.3f}"),
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
    heads = [cell(text, name=column < 4) for column, text in enumerate(headings)]
    return Table(heads, rows, f"Unfinished runs show their accuracies so far. {caption}" if states else "", "Runs")


def settings_of(record: RunRecord) -> dict[str, str]:
    return {clean(key): clean(format_value(value), 300) for key, value in flatten(record.config)}


def common_settings(records: Sequence[RunRecord]) -> dict[str, str]:
    """Return the settings that all runs have in common; empty for a single run, which is shown in full."""
    if len(records) < 2:
        return {}
    shared = settings_of(records[0])
    for record in records[1:]:
        own = settings_of(record)
        shared = {key: value for key, value in shared.items() if own.get(key) == value}
    return shared


def sections_of(record: RunRecord, shared: Mapping[str, str]) -> list[RunSection]:
    """Build the sections about one run. `shared` are the settings that all runs have in common."""
    sections = [_state(record), _uploads(record), _failures(record)]
    own = {key: value for key, value in settings_of(record).items() if key not in shared}
    title = "Settings that differ between runs" if shared else "Settings"
    sections.append(RunSection(title, tables=[table_of(["key", "value"], own.items(), names=2, label="Settings")]))
    return [section for section in sections if section.text or section.tables]


def _state(record: RunRecord) -> RunSection:
    reason = f" {record.reason}." if record.reason else ""
    progress = f"{len(record.rounds)} of {record.planned_rounds} rounds"
    section = RunSection("State", [f"{record.state.capitalize()}: {progress}.{reason}"])
    section.text += [f"Note: {note}" for note in record.notes[:MAX_FAILURES]]
    section.text += [
        f"Round {event.get('round', '?')}: {clean(event['message'], 400)}"
        for event in record.method_events.get("warning", [])[:MAX_FAILURES]
        if "message" in event
    ]
    return section


def _uploads(record: RunRecord) -> RunSection:
    section = RunSection("Uploads")
    if not record.uploads:
        section.text.append("No client has uploaded anything." if record.rounds else "No round is finished yet.")
        return section
    rows = [
        [
            clean(upload.step),
            clean(upload.name),
            clean(upload.shape),
            describe_protection(record.config, upload.name) or NOT_PROTECTED,
            upload.messages,
            len(upload.bytes_by_client),
            f"{upload.bytes:,}",
        ]
        for upload in record.uploads
    ]
    headings = ["step", "field", "shape", "protected", "messages", "clients", "bytes"]
    section.tables.append(table_of(headings, rows, names=4, label="Uploads by field"))
    if not any(describe_protection(record.config, upload.name) for upload in record.uploads):
        section.text.append("No field was clipped or noised: the receiver of these messages sees the exact values.")
    totals: dict[str, int] = {}
    for upload in record.uploads:
        for client, size in upload.bytes_by_client.items():
            totals[client] = totals.get(client, 0) + size
    sizes = sorted(totals.values())
    section.text.append(
        f"{len(totals)} clients sent {sum(sizes):,} bytes of tensors in total: minimum {sizes[0]:,}, "
        f"median {statistics.median(sizes):,.0f}, maximum {sizes[-1]:,} per client."
    )
    if len(totals) <= MAX_CLIENTS:
        models = {client.name: client.model for client in record.clients}
        lines = [
            [
                clean(name),
                models.get(name, "-"),
                *(f"{upload.bytes_by_client.get(name, 0):,}" for upload in record.uploads),
            ]
            for name in sorted(totals, key=lambda name: (len(name), name))
        ]
        fields = [f"{clean(upload.name)}, bytes" for upload in record.uploads]
        section.tables.append(table_of(["client", "model", *fields], lines, names=2, label="Uploads by client"))
    return section


def _failures(record: RunRecord) -> RunSection:
    """List equal failures once, with their number and first occurrence."""
    section = RunSection("Failures")
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for failure in record.failures:
        groups.setdefault((str(failure.get("kind")), str(failure.get("message"))), []).append(failure)
    if not groups:
        return section
    total = len(record.failures)
    section.text.append(f"{total} {'replies were' if total > 1 else 'reply was'} missing or rejected.")
    rows = []
    for (kind, message), members in list(groups.items())[:MAX_FAILURES]:
        first = members[0]
        where = f"client {first.get('client', '?')}, round {first.get('round', '?')}"
        rows.append([cell(kind, name=True), cell(message, kind="wrap"), cell(where, name=True), cell(len(members))])
        if first.get("detail"):
            section.details.append(str(first["detail"])[-4000:])
    headings = [cell("kind", name=True), cell("message", name=True), cell("first at", name=True), cell("count")]
    section.tables.append(Table(headings, rows, label="Failures"))
    if len(groups) > MAX_FAILURES:
        section.text.append(f"The first {MAX_FAILURES} of {len(groups)} different failures are shown.")
    return section
