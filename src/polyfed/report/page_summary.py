"""Top of the report: its title, a summary in one or two sentences, and the most important facts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from polyfed.comparison import Comparison
from polyfed.comparison.conclusion import WHERE, conclusion
from polyfed.report.run_record import STATES, RunRecord

MAX_NAMED = 8


def heading(records: Sequence[RunRecord], broken: dict[Path, str]) -> tuple[str, str]:
    """Return the title of the page and the line below it."""
    if len(records) == 1 and not broken:
        record = records[0]
        reason = f": {record.reason}" if record.reason else ""
        return record.name, f"{record.method} on {record.dataset}, {record.state}{reason}"
    states = {state: sum(record.state == state for record in records) for state in STATES}
    counts = [f"{count} {state}" for state, count in states.items() if count]
    counts += [f"{len(broken)} broken"] if broken else []
    total = len(records) + len(broken)
    lead = f"{total} run{'s' if total != 1 else ''}: {', '.join(counts)}"
    if len(counts) == 1:
        lead = f"{counts[0]} run{'s' if total != 1 else ''}"
    methods, data = _distinct(record.method for record in records), _distinct(record.dataset for record in records)
    if not records:
        return f"Report on {total} run{'s' if total != 1 else ''}", lead
    return f"{_join(methods)} on {_join(data)}", lead


def summary(records: Sequence[RunRecord], comparison: Comparison | None) -> list[str]:
    """Return sentences that read the results for the user: the conclusion of the comparison, or the best method."""
    if comparison is None:
        return []
    sentence = conclusion(comparison)
    if sentence is not None:
        return [sentence]
    for kind in ("global", "personal"):
        key = f"{kind}_final"
        rows = [(row, spread) for row in comparison.rows if (spread := row.values.get(key)) is not None]
        if not rows:
            continue
        row, spread = max(rows, key=lambda pair: pair[1].mean)
        name = ", ".join(row.group.values()) or records[0].method
        start = "Highest accuracy: " if len(rows) > 1 else ""
        runs = f", mean over {spread.n} runs" if spread.n > 1 else ""
        sentence = f"{start}{name} reaches {spread.mean:.1f} % {WHERE[key]}{runs}."
        if all(record.method != "local" for record in records):
            sentence += (
                " Run the method `local` with the same settings and seeds to see the gain over local training."
            )
        return [sentence]
    return []


def facts(records: Sequence[RunRecord]) -> list[tuple[str, str]]:
    """Return the facts that all readers ask for: data, clients, rounds, methods and seeds."""
    if not records:
        return []
    clients = _distinct(record.config.get("clients", len(record.clients)) for record in records)
    models = _distinct(client.model for record in records for client in record.clients)
    partitions = _distinct(_partition(record) for record in records)
    rounds = _distinct(record.planned_rounds for record in records)
    pairs = [
        ("Methods", _join(_distinct(record.method for record in records))),
        ("Data", _join(_distinct(record.dataset for record in records))),
        ("Partition", _join([one for one in partitions if one])),
        ("Clients", _join(clients)),
        ("Architectures", _join(models) if len(models) <= 4 else f"{len(models)} different"),
        ("Rounds", _join(rounds)),
        ("Seeds", _join(_distinct(record.seed for record in records))),
    ]
    return [(name, value) for name, value in pairs if value]


def _partition(record: RunRecord) -> str:
    data = record.config.get("data")
    partition = data.get("partition") if isinstance(data, dict) else None
    if not isinstance(partition, dict):
        return ""
    rest = [f"{key} {value}" for key, value in partition.items() if key in {"alpha", "classes"} and value is not None]
    return " ".join([str(partition.get("scheme", "")), *rest]).strip()


def _distinct(values: Iterable[object]) -> list[str]:
    """Return different values as text, numbers in their order."""
    return [str(value) for value in sorted(set(values), key=lambda v: (isinstance(v, str), v))]


def _join(names: Sequence[str]) -> str:
    shown = list(names[:MAX_NAMED])
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
