"""Read a run folder into a `RunRecord`, whether the run has finished, is running, was stopped or died.

Events are read once, line by line, without torch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polyfed.comparison.runs import Run, run_folders
from polyfed.errors import InputError
from polyfed.report.clean_text import clean
from polyfed.report.client_data import ClientData, read_clients
from polyfed.report.events import read_events
from polyfed.report.uploads import UploadSummary, summarise_uploads
from polyfed.runs import lock_owner
from polyfed.runs.config_text import format_value
from polyfed.runs.folder import RunFolder
from polyfed.runs.json_values import is_number
from polyfed.runs.records import Result, RoundRecord
from polyfed.runs.safe_files import reason

PHASES = ("train", "evaluate", "server")
STATES = {
    "finished": "finished",
    "running": "running",
    "stopped": "stopped by the user; `polyfed resume` continues the run",
    "failed": "ended with an error",
    "died": "the process ended without a message, for example by a kill; `polyfed resume` continues the run",
}


@dataclass
class RunRecord:
    """A run. Lists over rounds have one value for each number in `rounds`."""

    path: Path
    config: dict[str, Any]
    result: Result | None
    state: str
    reason: str = ""
    rounds: list[int] = field(default_factory=list)
    accuracy: dict[str, list[float | None]] = field(default_factory=dict)
    accuracy_by_client: dict[str, list[float | None]] = field(default_factory=dict)  # in the last evaluated round
    loss: list[float | None] = field(default_factory=list)
    upload_bytes: list[int] = field(default_factory=list)  # bytes of tensors, as in result.json
    download_bytes: list[int] = field(default_factory=list)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    uploads: list[UploadSummary] = field(default_factory=list)
    failures: list[Mapping[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    confusion: dict[str, Sequence[Sequence[int]]] = field(
        default_factory=dict
    )  # in the last evaluated round, by kind
    method_events: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # events of the method, by kind
    clients: list[ClientData] = field(default_factory=list)
    class_names: list[str] = field(default_factory=list)
    _run: Run | None = None

    @property
    def name(self) -> str:
        return clean(self.config.get("name") or self.path.name)

    @property
    def method(self) -> str:
        method = self.config.get("method")
        return clean(method.get("name", "?") if isinstance(method, Mapping) else method)

    @property
    def dataset(self) -> str:
        data = self.config.get("data")
        return clean(data.get("dataset", "?") if isinstance(data, Mapping) else "?")

    @property
    def seed(self) -> int:
        return int(self.config.get("seed", 0))

    @property
    def planned_rounds(self) -> int:
        return int(self.config.get("rounds", len(self.rounds)))

    @property
    def privacy(self) -> Any:
        """The privacy entry of the result; None for unfinished runs and runs without protected fields."""
        return None if self.result is None else self.result.get("privacy")

    def check(self) -> None:
        """Raise TypeError if a value that figures use as a number is not a number."""
        numbers: list[float | int | None] = [self.seed, self.planned_rounds, *self.loss]
        numbers += [*self.upload_bytes, *self.download_bytes]
        for by_kind in (self.accuracy, self.accuracy_by_client):
            numbers += [value for series in by_kind.values() for value in series]
        numbers += [value for series in self.seconds.values() for value in series]
        numbers += [upload.bytes for upload in self.uploads]
        for client in self.clients:
            numbers += [client.parameters, *client.train_counts.values()]
        for value in [*numbers, int(self.config.get("clients", 0))]:
            if value is not None and not is_number(value):
                raise TypeError(f"expected a number, found {clean(value, 40)}")
        if self.result is not None:
            self.result.check()

    def as_run(self) -> Run:
        """Return the run as the comparison takes it."""
        if self._run is None:
            result = self.result or Result(method=self.method, seed=self.seed)
            self._run = Run(str(self.path), result, self.config)
        return self._run

    def setting(self, key: str) -> str:
        """Return a value of the config by its dotted key, as text."""
        return clean(format_value(self.as_run().lookup(key)))

    def final_accuracy(self, kind: str) -> float | None:
        return next((value for value in reversed(self.accuracy.get(kind, [])) if value is not None), None)

    def best_accuracy(self, kind: str) -> float | None:
        return max((value for value in self.accuracy.get(kind, []) if value is not None), default=None)

    def model_of(self, client: int) -> str:
        return self.clients[client].model if client < len(self.clients) else ""

    def artifacts(self, kind: str) -> list[tuple[int, Path]]:
        """Return the tensor files of a kind with their rounds, in order of rounds."""
        files = []
        for path in (self.path / "artifacts").glob(f"{kind}-*.safetensors"):
            with contextlib.suppress(ValueError):
                files.append((int(path.stem.removeprefix(f"{kind}-")), path))
        return sorted(files)


def read_all(folders: Iterable[Path]) -> tuple[list[RunRecord], dict[Path, str]]:
    """Read every run at or below some folders. Return the records, and an error message for each broken run."""
    records: list[RunRecord] = []
    broken: dict[Path, str] = {}
    visited: set[Path] = set()
    roots = list(folders)
    for path in (run for root in roots for run in run_folders(root)):
        if path.resolve() in visited:
            continue
        visited.add(path.resolve())
        try:
            records.append(read(path))
        except InputError as error:
            broken[path] = str(error)
    if not visited:
        raise InputError(f"there is no run in {', '.join(map(str, roots)) or 'nothing'}")
    return records, broken


def read(path: Path) -> RunRecord:
    """Read one run folder. Raise InputError if its files are damaged."""
    folder = RunFolder(path)
    active = _active(folder)  # before the events: a run that ends meanwhile is shown as it was
    try:
        record = RunRecord(path, folder.config(), folder.result(), "died")
        _read_events(record, folder)
        record.class_names, record.clients = read_clients(folder.clients_file)
        if not record.rounds and record.result is not None:
            _from_result(record, record.result)
        record.check()
    except OSError as error:
        raise InputError(f"{folder.events_file} cannot be read: {reason(error)}") from None
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise InputError(
            f"{path} is damaged or was not written by polyfed: {type(error).__name__}: {reason(error)}"
        ) from None
    if record.result is not None:
        record.state = "finished"
    elif active:
        record.state, record.reason = "running", ""
    return record


def _active(folder: RunFolder) -> bool:
    """Return whether a process is working on the folder now."""
    owner = lock_owner.read(folder.lock_file)
    if owner is None:
        return False
    try:
        return owner.active(folder.events_file.stat().st_mtime)
    except OSError:
        return owner.active(0.0)


def _read_events(record: RunRecord, folder: RunFolder) -> None:
    rounds: dict[int, RoundRecord] = {}
    evaluated: int | None = None  # the last round with accuracies
    # by round, so that events of rounds that a resumed run repeats count once
    by_round: dict[str, dict[int, list[dict[str, Any]]]] = {"left": {}, "failure": {}, "method": {}}
    for event in read_events(folder.events_file):
        match event["event"]:
            case "round":
                one = RoundRecord.from_dict(event)
                if one.accuracy:
                    # keep the values of single clients for one round only: they take too much memory for all rounds
                    if evaluated in rounds:
                        rounds[evaluated] = rounds[evaluated].without_clients()
                    evaluated = one.round
                rounds[one.round] = one
            case "left" | "failure" | "method":
                by_round[event["event"]].setdefault(int(event["round"]), []).append(event)
            case "started" | "resumed":
                last = int(event["round"]) if event["event"] == "resumed" else 0
                rounds = {number: one for number, one in rounds.items() if number <= last}
                by_round = {
                    kind: {number: events for number, events in numbered.items() if number <= last}
                    for kind, numbered in by_round.items()
                }
                record.state, record.reason = "died", ""
            case "stopped":
                record.state, record.reason = "stopped", f"after round {event.get('round', '?')}"
            case "failed":
                record.state, record.reason = "failed", clean(event.get("message", ""), 400)
            case "note":
                record.notes.append(clean(event.get("message", ""), 400))
            case _:
                pass  # events of later versions

    def in_order(kind: str) -> Iterator[dict[str, Any]]:
        for number in sorted(by_round[kind]):
            yield from by_round[kind][number]

    _fill(record, [rounds[number] for number in sorted(rounds)])
    record.uploads = summarise_uploads(in_order("left"))
    record.failures = list(in_order("failure"))
    for event in in_order("method"):
        record.method_events.setdefault(str(event.get("kind")), []).append(event)


def _fill(record: RunRecord, rounds: Sequence[RoundRecord]) -> None:
    kinds = dict.fromkeys(kind for one in rounds for kind in one.accuracy)
    record.rounds = [one.round for one in rounds]
    record.accuracy = {kind: [one.accuracy_value(kind) for one in rounds] for kind in kinds}
    for kind in kinds:
        last = [one.accuracy[kind] for one in rounds if kind in one.accuracy][-1]
        record.accuracy_by_client[kind] = list(last.by_client)
    record.confusion = next((dict(one.confusion) for one in reversed(rounds) if one.confusion), {})
    record.loss = [one.loss for one in rounds]
    record.upload_bytes = [one.upload_bytes for one in rounds]
    record.download_bytes = [one.download_bytes for one in rounds]
    parts = dict.fromkeys(part for one in rounds for part in one.seconds)
    record.seconds = {part: [float(one.seconds.get(part, 0.0)) for one in rounds] for part in parts}


def _from_result(record: RunRecord, result: Result) -> None:
    """Fill the series of a run whose events were deleted."""
    record.rounds = list(range(1, result.rounds + 1))
    for kind, measured in result.accuracy.items():
        if measured is not None:
            record.accuracy[kind] = list(measured.by_round)
            record.accuracy_by_client[kind] = list(measured.by_client)
    record.confusion = dict(result.confusion)
    record.loss = list(result.loss_by_round)
    record.upload_bytes = list(result.upload_bytes_by_round)
    record.download_bytes = list(result.download_bytes_by_round)
    record.seconds = {"total": list(result.seconds_by_round)}
    record.failures = list(result.failures)
