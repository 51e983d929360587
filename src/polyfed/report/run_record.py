"""One run as its folder tells it: finished, still going, stopped or dead. Read once, line by line, without torch."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polyfed.comparison.runs import Run, run_folders
from polyfed.errors import InputError
from polyfed.report.uploads import Left, summed
from polyfed.runs import lock_owner
from polyfed.runs.config_text import format_value
from polyfed.runs.folder import RunFolder
from polyfed.runs.records import Result, RoundRecord

SILENT = 600.0  # seconds after which a process that cannot be looked at counts as gone
PHASES = ("train", "evaluate", "server")
STATES = {
    "finished": "finished",
    "running": "running",
    "stopped": "stopped by its user; `polyfed resume` goes on",
    "failed": "ended with an error",
    "died": "ended without a word, such as by a kill; `polyfed resume` goes on",
}


def clean(text: object, most: int = 120) -> str:
    """A name from a folder as one line that every format can hold."""
    line = " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())
    return line if len(line) <= most else line[: most - 1] + "…"


@dataclass(frozen=True)
class Share:
    """One client: its model and its samples by class."""

    name: str
    model: str
    numbers: int
    train: Mapping[int, int]


@dataclass
class Record:
    """A run. Lists by round are in the order of `rounds`, which holds their numbers."""

    path: Path
    config: dict[str, Any]
    result: Result | None
    state: str
    reason: str = ""
    rounds: list[int] = field(default_factory=list)
    accuracy: dict[str, list[float | None]] = field(default_factory=dict)
    by_client: dict[str, list[float | None]] = field(default_factory=dict)  # of the last round that was measured
    loss: list[float | None] = field(default_factory=list)
    up: list[int] = field(default_factory=list)  # bytes of tensors, as in result.json
    down: list[int] = field(default_factory=list)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    left: list[Left] = field(default_factory=list)
    failures: list[Mapping[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    told: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # events of the method, by kind
    shares: list[Share] = field(default_factory=list)
    class_names: list[str] = field(default_factory=list)

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
    def planned(self) -> int:
        return int(self.config.get("rounds", len(self.rounds)))

    @property
    def privacy(self) -> Any:
        """The privacy entry of the result; None for unfinished runs and runs without protected fields."""
        return None if self.result is None else self.result.get("privacy")

    def check(self) -> None:
        """Raise where a value is not what everything else takes it for."""
        numbers: list[float | int | None] = [self.seed, self.planned, *self.loss, *self.up, *self.down]
        for by_kind in (self.accuracy, self.by_client):
            numbers += [value for series in by_kind.values() for value in series]
        numbers += [value for series in self.seconds.values() for value in series]
        numbers += [left.bytes for left in self.left]
        for value in numbers:
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise TypeError(f"{value!r} stands where a number is expected")

    def as_run(self) -> Run:
        return Run(str(self.path), self.result or Result(method=self.method, seed=self.seed), self.config)

    def setting(self, key: str) -> str:
        """A value of the config by its dotted key, as text."""
        return clean(format_value(self.as_run().lookup(key)))

    def last(self, kind: str) -> float | None:
        return next((value for value in reversed(self.accuracy.get(kind, [])) if value is not None), None)

    def best(self, kind: str) -> float | None:
        return max((value for value in self.accuracy.get(kind, []) if value is not None), default=None)

    def model_of(self, client: int) -> str:
        return self.shares[client].model if client < len(self.shares) else ""

    def artifacts(self, kind: str) -> list[tuple[int, Path]]:
        """Rounds and files of tensors that the method kept under a name."""
        found = []
        for path in (self.path / "artifacts").glob(f"{kind}-*.safetensors"):
            with contextlib.suppress(ValueError):
                found.append((int(path.stem.removeprefix(f"{kind}-")), path))
        return sorted(found)


def read_all(folders: Iterable[Path]) -> tuple[list[Record], dict[Path, str]]:
    """Every run in some folders, and why the folders that are broken are."""
    records: list[Record] = []
    broken: dict[Path, str] = {}
    seen: set[Path] = set()
    looked = list(folders)
    for path in (found for folder in looked for found in run_folders(folder)):
        if path.resolve() in seen:
            continue
        seen.add(path.resolve())
        try:
            records.append(read(path))
        except InputError as error:
            broken[path] = str(error)
    if not seen:
        raise InputError(f"there is no run in {', '.join(map(str, looked)) or 'nothing'}")
    return records, broken


def read(path: Path) -> Record:
    """One run; InputError says what is wrong with a folder that polyfed did not leave so."""
    folder = RunFolder(path)
    busy = _at_work(folder)  # before the events: a run that ends meanwhile is still shown as it was
    try:
        record = Record(path, folder.config(), folder.result(), "died")
        _read_events(record, folder)
        _read_shares(record, folder)
        if not record.rounds and record.result is not None:
            _from_result(record, record.result)
        record.check()
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise InputError(f"{path} holds what polyfed did not write: {type(error).__name__}: {error}") from None
    if record.result is not None:
        record.state = "finished"
    elif busy:
        record.state, record.reason = "running", ""
    return record


def _at_work(folder: RunFolder) -> bool:
    """Whether a process works on the folder now. One on another machine is believed while it writes."""
    who = lock_owner.read(folder.lock_file)
    if who is None or who.here():
        return who is not None and who.alive()
    try:
        return time.time() - folder.events_file.stat().st_mtime < SILENT
    except OSError:
        return False


# how a line about what left a client begins; most lines are such, and the rest of one is the same in most rounds
_LEFT = re.compile(r'\{"time": [0-9.]+, "round": ([0-9]+), (?="client": )')


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Events in order; a line that a kill has cut is left out."""
    decode = json.JSONDecoder().decode
    seen: dict[str, dict[str, Any]] = {}  # what stands after the round, decoded once
    with contextlib.suppress(FileNotFoundError), path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            begin = _LEFT.match(line)
            if begin is not None and (same := seen.get(line[begin.end() :])) is not None:
                yield {**same, "round": int(begin[1])}
                continue
            try:
                event = decode(line)
            except json.JSONDecodeError:
                continue
            if isinstance(event, dict) and isinstance(event.get("event"), str):
                if begin is not None and event["event"] == "left":
                    seen[line[begin.end() :]] = event
                yield event


def _read_events(record: Record, folder: RunFolder) -> None:
    rounds: dict[int, RoundRecord] = {}
    evaluated: int | None = None  # the last round with accuracies
    # left, failure and method events by round, so that what a resumed run does again counts once
    kept: dict[str, dict[int, list[dict[str, Any]]]] = {"left": {}, "failure": {}, "method": {}}
    for event in _lines(folder.events_file):
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
                kept[event["event"]].setdefault(int(event["round"]), []).append(event)
            case "started" | "resumed":
                since = int(event["round"]) if event["event"] == "resumed" else 0
                rounds = {number: of for number, of in rounds.items() if number <= since}
                kept = {kind: {n: of for n, of in by.items() if n <= since} for kind, by in kept.items()}
                record.state, record.reason = "died", ""
            case "stopped":
                record.state, record.reason = "stopped", f"after round {event.get('round', '?')}"
            case "failed":
                record.state, record.reason = "failed", clean(event.get("message", ""), 400)
            case "note":
                record.notes.append(clean(event.get("message", ""), 400))
            case _:
                pass  # what later versions record besides

    def flat(kind: str) -> Iterator[dict[str, Any]]:
        for number in sorted(kept[kind]):
            yield from kept[kind][number]

    _fill(record, [rounds[number] for number in sorted(rounds)])
    record.left = summed(flat("left"))
    record.failures = list(flat("failure"))
    for event in flat("method"):
        record.told.setdefault(str(event.get("kind")), []).append(event)


def _fill(record: Record, rounds: Sequence[RoundRecord]) -> None:
    kinds = dict.fromkeys(kind for one in rounds for kind in one.accuracy)
    record.rounds = [one.round for one in rounds]
    record.accuracy = {kind: [one.accuracy_value(kind) for one in rounds] for kind in kinds}
    for kind in kinds:
        last = [one.accuracy[kind] for one in rounds if kind in one.accuracy][-1]
        record.by_client[kind] = list(last.by_client)
    record.loss = [one.loss for one in rounds]
    record.up = [one.upload_bytes for one in rounds]
    record.down = [one.download_bytes for one in rounds]
    parts = dict.fromkeys(part for one in rounds for part in one.seconds)
    record.seconds = {part: [float(one.seconds.get(part, 0.0)) for one in rounds] for part in parts}


def _from_result(record: Record, result: Result) -> None:
    """Fill the series of a run whose events were deleted."""
    record.rounds = list(range(1, result.rounds + 1))
    for kind, measured in result.accuracy.items():
        if measured is not None:
            record.accuracy[kind] = list(measured.by_round)
            record.by_client[kind] = list(measured.by_client)
    record.loss = list(result.loss_by_round)
    record.up, record.down = list(result.upload_bytes_by_round), list(result.download_bytes_by_round)
    record.seconds = {"total": list(result.seconds_by_round)}
    record.failures = list(result.failures)


def _read_shares(record: Record, folder: RunFolder) -> None:
    try:
        found = json.loads(folder.clients_file.read_text())
    except FileNotFoundError:
        return  # a run of an earlier version, or of parties that keep such counts to themselves
    except OSError as error:
        raise InputError(f"{folder.clients_file} cannot be read: {error.strerror}") from None
    record.class_names = [clean(name, 40) for name in found["class_names"]]
    record.shares = [
        Share(
            clean(one["name"], 40),
            clean(one["model"], 40),
            int(one["numbers"]),
            {int(label): int(count) for label, count in one["train"].items()},
        )
        for one in found["clients"]
    ]
