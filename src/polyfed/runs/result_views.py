"""Views of a result: its clients and rounds from the run folder, a short table as text or HTML, and data frames."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyfed.console import format_bytes, format_duration, format_percent
from polyfed.errors import InputError
from polyfed.runs import safe_files

if TYPE_CHECKING:
    import pandas as pd

    from polyfed.runs.folder import RunFolder
    from polyfed.runs.records import Result, RoundRecord

TABLES = ("rounds", "clients")


@dataclass(frozen=True, slots=True)
class ClientRecord:
    """One client of a finished run."""

    name: str
    model: str  # its architecture
    samples: int  # for training
    test_samples: int  # of its personal test set
    accuracy: float | None  # on its personal test set, in the last evaluated round; None without test samples
    global_accuracy: float | None  # on the common test set; None if there is none


class ResultViews(dict[str, Any]):
    """Base class of `Result`, for people: what it prints, and what its run folder adds."""

    folder: Path | None = None  # the run folder, if it is known

    @property
    def clients(self: Any) -> list[ClientRecord]:
        """Name, model, number of samples and accuracy of every client."""
        return clients_of(self)

    @property
    def history(self: Any) -> list[RoundRecord]:
        """The measurements of every round."""
        return history_of(self)

    def to_pandas(self: Any, table: str = "rounds") -> pd.DataFrame:
        """Return a data frame with one row per round, or per client with `table="clients"`. Needs pandas."""
        return data_frame(self, table)

    def __repr__(self: Any) -> str:
        try:
            return as_text(self)
        except (KeyError, TypeError, AttributeError, ValueError):  # an incomplete result
            return dict.__repr__(self)

    def _repr_html_(self: Any) -> str | None:
        try:
            return as_html(self)
        except (KeyError, TypeError, AttributeError, ValueError):
            return None


def clients_of(result: Result) -> list[ClientRecord]:
    """Return the clients of a run, in client order."""
    folder = _folder_of(result)
    try:
        entries = safe_files.read_json(folder.clients_file)["clients"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder.clients_file} cannot be read: {error}") from None
    personal, common = (_by_client(result, kind, len(entries)) for kind in ("personal", "global"))
    return [
        ClientRecord(
            entry["name"], entry["model"], sum(entry["train"].values()), sum(entry["test"].values()), own, shared
        )
        for entry, own, shared in zip(entries, personal, common, strict=True)
    ]


def history_of(result: Result) -> list[RoundRecord]:
    """Return the record of every round, from the events of the run folder. A repeated round counts once."""
    from polyfed.runs.records import RoundRecord  # imports this module

    by_round: dict[int, RoundRecord] = {}
    for event in _folder_of(result).events():
        record = RoundRecord.from_damaged(event) if event.get("event") == "round" else None
        if record is not None and record.round <= result.rounds:
            by_round[record.round] = record
    return [by_round[number] for number in sorted(by_round)]


def data_frame(result: Result, table: str) -> pd.DataFrame:
    """Return the rounds or the clients of a run as a pandas data frame."""
    if table not in TABLES:
        raise InputError(f"there is no table '{table}'; expected 'rounds' or 'clients'")
    try:
        import pandas as pd
    except ImportError:
        raise InputError("to_pandas needs pandas; install it with pip install pandas") from None
    if table == "clients":
        rows = [{name: getattr(client, name) for name in ClientRecord.__slots__} for client in clients_of(result)]
        return pd.DataFrame(rows).set_index("name")
    columns: dict[str, Any] = {"round": range(1, len(result.seconds_by_round) + 1)}
    for kind, measured in result.accuracy.items():
        if measured is not None:
            columns[kind] = list(measured.by_round)
    for kind, by_name in result.metrics.items():
        columns |= {f"{kind} {name}": list(metric.by_round) for name, metric in by_name.items()}
    columns |= {
        "loss": list(result.loss_by_round),
        "upload_bytes": list(result.upload_bytes_by_round),
        "download_bytes": list(result.download_bytes_by_round),
        "seconds": list(result.seconds_by_round),
    }
    return pd.DataFrame(columns).set_index("round")


def as_text(result: Result) -> str:
    """Return a short table of a result."""
    rows = _rows(result)
    width = max(len(name) for name, _ in rows)
    return "\n".join([_title(result), *(f"  {name:<{width}}  {value}" for name, value in rows)])


def as_html(result: Result) -> str:
    """Return the short table of a result for a notebook."""
    cells = "".join(
        f'<tr><th style="text-align:left">{html.escape(name)}</th>'
        f'<td style="text-align:left">{html.escape(value)}</td></tr>'
        for name, value in _rows(result)
    )
    caption = f'<caption style="text-align:left">{html.escape(_title(result))}</caption>'
    return f"<table>{caption}{cells}</table>"


def _title(result: Result) -> str:
    return f"{result.method} on {result.dataset or 'unknown data'}, {result.rounds} rounds, seed {result.seed}"


def _rows(result: Result) -> list[tuple[str, str]]:
    rows = []
    for kind, measured in result.accuracy.items():
        if measured is not None:
            value = f"{format_percent(measured.final)} (best {format_percent(measured.best)})"
            rows.append((f"{kind} accuracy", value))
    for kind in ("personal", "global"):  # not further ways to predict, which the folder has
        for name, metric in result.metrics.get(kind, {}).items():
            if metric.by_client and metric.final is not None:  # not the summaries that every run has
                shown = f"{metric.final:.3f} nats" if name == "log_loss" else format_percent(metric.final)
                rows.append((f"{kind} {name.replace('_', ' ')}", shown))
    rows.append(("sent", f"{format_bytes(result.upload_bytes)} up, {format_bytes(result.download_bytes)} down"))
    rows.append(("time", format_duration(result.seconds)))
    if result.failures:
        rows.append(("failures", f"{len(result.failures)} replies of clients are missing"))
    if result.folder is not None:
        rows.append(("folder", str(result.folder)))
    return rows


def _folder_of(result: Result) -> RunFolder:
    if result.folder is None:
        raise InputError("this result was not read from a run folder; open it with polyfed.load(folder)")
    from polyfed.runs.folder import RunFolder  # imports this module

    return RunFolder(Path(result.folder))


def _by_client(result: Result, kind: str, count: int) -> list[float | None]:
    measured: Mapping[str, Any] | None = result["accuracy"].get(kind)
    values = [] if measured is None else list(measured.get("by_client", ()))
    return values if len(values) == count else [None] * count
