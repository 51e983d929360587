"""Progress of runs on stderr: bars in a terminal, one line per round elsewhere, nothing with --quiet."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from polyfed.console import format_bytes, format_duration, format_percent, make_console, print_message, single_line
from polyfed.runs.records import KINDS, RoundRecord

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import Progress, TaskID

    from polyfed.config import Config


@dataclass
class ProgressSnapshot:
    """The numbers shown for one round, or for all rounds so far."""

    round: int = 0
    accuracy: dict[str, float] = field(default_factory=dict)
    best: dict[str, float] = field(default_factory=dict)
    loss: float | None = None
    up: int = 0
    down: int = 0
    failures: int = 0

    def add(self, later: ProgressSnapshot) -> None:
        """Add a later round. A round without evaluation leaves the accuracies unchanged."""
        self.round = later.round
        self.accuracy |= later.accuracy
        for kind, value in later.best.items():
            self.best[kind] = max(value, self.best.get(kind, value))
        self.loss = self.loss if later.loss is None else later.loss
        self.up, self.down = self.up + later.up, self.down + later.down
        self.failures += later.failures


def snapshot_of(record: RoundRecord) -> ProgressSnapshot:
    """Return the numbers of one round."""
    accuracy = {kind: record.accuracy[kind].value for kind in KINDS if kind in record.accuracy}
    return ProgressSnapshot(
        round=record.round,
        accuracy=accuracy,
        best=dict(accuracy),
        loss=record.loss,
        up=record.upload_bytes,
        down=record.download_bytes,
        failures=len(record.failures),
    )


def snapshot_until(folder: Path, rounds: int) -> ProgressSnapshot:
    """Return the numbers of the first rounds of a run, from its events. A repeated round counts once."""
    total = ProgressSnapshot()
    if not rounds:
        return total
    from polyfed.runs.folder import RunFolder

    by_round: dict[int, ProgressSnapshot] = {}
    for event in RunFolder(folder).events():
        record = RoundRecord.from_damaged(event) if event.get("event") == "round" else None
        if record is not None and record.round <= rounds:
            by_round[record.round] = snapshot_of(record)
    for number in sorted(by_round):
        total.add(by_round[number])
    total.round = rounds
    return total


@dataclass
class RunProgress:
    """One run on a progress board."""

    label: str
    rounds: int = 0
    resumed_at: int = 0  # rounds that were finished before this process started
    total: ProgressSnapshot = field(default_factory=ProgressSnapshot)
    started: float = field(default_factory=time.monotonic)
    bar: TaskID | None = None

    def headline(self) -> str:
        """Return accuracy, bytes and failures so far, on one line."""
        accuracies = [f"{kind} {format_percent(value)}" for kind, value in self.total.accuracy.items()]
        failed = [f"{self.total.failures} failed"] if self.total.failures else []
        return "  ".join([*accuracies, format_bytes(self.total.up + self.total.down), *failed])

    def details(self) -> list[tuple[str, str]]:
        """Return every number with its name."""
        total = self.total
        rows = [
            (kind, f"{format_percent(value)}, best {format_percent(total.best.get(kind))}")
            for kind, value in total.accuracy.items()
        ]
        if total.loss is not None:
            rows.append(("loss", f"{total.loss:.4g}"))
        rows.append(("bytes", f"{format_bytes(total.up)} up, {format_bytes(total.down)} down"))
        seconds = self.seconds_per_round()
        if seconds is not None:
            text = f"{seconds:.2g} s" if seconds < 10 else format_duration(seconds)
            rows.append(("time", f"{text} per round"))
        rows.append(("failures", str(total.failures)))
        return rows

    def seconds_per_round(self) -> float | None:
        """Return the mean duration of the rounds of this process, or None before the first."""
        finished = self.total.round - self.resumed_at
        return (time.monotonic() - self.started) / finished if finished else None

    def remaining_time(self) -> str:
        """Return the estimated time to the end of the run."""
        seconds = self.seconds_per_round()
        if seconds is None:
            return ""
        remaining = self.rounds - self.total.round
        return f"{format_duration(seconds * remaining)} left" if remaining else "done"


class ProgressBoard:
    """Shows the progress of one or more runs. Use it in a `with` block; several threads may report to it."""

    def __init__(self, *, quiet: bool = False, every_round: bool = True) -> None:
        self._quiet = quiet
        self._every_round = every_round
        self._runs: list[RunProgress] = []
        self._bars: Progress | None = None

    def __enter__(self) -> ProgressBoard:
        if not self._quiet and sys.stderr.isatty():
            self._bars = make_bars(self._runs if self._every_round else None)
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    def add(self, label: str) -> RunProgress:
        """Add a run that has not started its rounds yet."""
        run = RunProgress(single_line(label))
        self._runs.append(run)
        if self._bars is not None:
            run.bar = self._bars.add_task(run.label, total=None, round="preparing", headline="", remaining="")
        return run

    def start(self, run: RunProgress, rounds: int, before: ProgressSnapshot) -> None:
        """Start a run's rounds; `before` holds the numbers up to its checkpoint."""
        run.rounds, run.resumed_at, run.total, run.started = rounds, before.round, before, time.monotonic()
        self._draw(run)

    def advance(self, run: RunProgress, snapshot: ProgressSnapshot) -> None:
        """Add a finished round."""
        run.total.add(snapshot)
        self._draw(run)
        if self._bars is None and not self._quiet and self._every_round:
            facts = [f"{name} {value}" for name, value in run.details() if (name, value) != ("failures", "0")]
            details = "; ".join([*facts, run.remaining_time()])
            print_message("  ".join([run.label, f"round {snapshot.round}/{run.rounds}", details]))

    def finish(self, run: RunProgress, outcome: str) -> None:
        """Replace the bar of a run that has ended by one line."""
        if self._bars is not None and run.bar is not None:
            self._bars.remove_task(run.bar)
        self.note(f"{run.label}  {outcome}  {run.headline()}  {format_duration(time.monotonic() - run.started)}")

    def note(self, sentence: str) -> None:
        """Print a message above the bars."""
        if self._quiet:
            return
        if self._bars is None:
            print_message(sentence)
            return
        try:
            self._bars.console.print(single_line(sentence), markup=False, soft_wrap=True)
        except RuntimeError:  # called by a signal handler, see `print_message`
            print_message(sentence)

    def _draw(self, run: RunProgress) -> None:
        if self._bars is not None and run.bar is not None:
            self._bars.update(
                run.bar,
                total=run.rounds,
                completed=run.total.round,
                round=f"round {run.total.round}/{run.rounds}",
                headline=run.headline(),
                remaining=run.remaining_time(),
            )


def make_bars(detailed: list[RunProgress] | None) -> Progress:
    """Return one progress bar per run. With `detailed`, show all numbers of these runs below the bars."""
    from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn
    from rich.table import Table
    from rich.text import Text

    class DetailedProgress(Progress):
        def get_renderables(self) -> Iterable[RenderableType]:
            yield self.make_tasks_table(self.tasks)
            for run in detailed or []:
                if run.total.round:
                    grid = Table.grid(padding=(0, 2))
                    for name, value in run.details():
                        style = "red" if name == "failures" and run.total.failures else "cyan"
                        grid.add_row(Text(f"  {name}", style="dim"), Text(value, style=style))
                    yield grid

    columns: list[ProgressColumn] = [
        SpinnerColumn(),
        TextColumn("{task.description}", style="bold", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[round]}", markup=False),
    ]
    if detailed is None:
        columns.append(TextColumn("{task.fields[headline]}", style="cyan", markup=False))
    columns.append(TextColumn("{task.fields[remaining]}", style="dim", markup=False))
    return DetailedProgress(*columns, console=make_console(stderr=True), transient=True)


class ProgressObserver:
    """Observer of an experiment that shows it on a progress board."""

    def __init__(self, board: ProgressBoard, label: str) -> None:
        self._board = board
        self._run = board.add(label)

    def started(self, config: Config, folder: Path, done: int) -> None:
        self._board.start(self._run, config.rounds, snapshot_until(folder, done))

    def round_done(self, record: RoundRecord) -> None:
        self._board.advance(self._run, snapshot_of(record))

    def note(self, sentence: str) -> None:
        self._board.note(sentence)
