"""Progress on stderr: bars and numbers in a terminal, a line per round elsewhere, nothing when quiet."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from polyfed.cli.output import console, duration, one_sentence, percent, say, size
from polyfed.runs.records import KINDS, RoundRecord

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import Progress, TaskID

    from polyfed.config import Config


@dataclass
class Glance:
    """What is shown of a round, or of all rounds before a checkpoint."""

    round: int = 0
    accuracy: dict[str, float] = field(default_factory=dict)
    best: dict[str, float] = field(default_factory=dict)
    loss: float | None = None
    up: int = 0
    down: int = 0
    failures: int = 0

    def add(self, later: Glance) -> None:
        """Take in a later round. One that was not evaluated leaves the accuracies as they were."""
        self.round = later.round
        self.accuracy |= later.accuracy
        for kind, value in later.best.items():
            self.best[kind] = max(value, self.best.get(kind, value))
        self.loss = self.loss if later.loss is None else later.loss
        self.up, self.down = self.up + later.up, self.down + later.down
        self.failures += later.failures


@dataclass
class Line:
    """One run that is shown."""

    label: str
    rounds: int = 0
    first: int = 0  # rounds that were done before this process came
    so_far: Glance = field(default_factory=Glance)
    began: float = field(default_factory=time.monotonic)
    bar: TaskID | None = None

    def numbers(self) -> str:
        """Accuracy and bytes so far, in a few words."""
        shown = [f"{kind} {percent(value)}" for kind, value in self.so_far.accuracy.items()]
        failed = [f"{self.so_far.failures} failed"] if self.so_far.failures else []
        return "  ".join([*shown, size(self.so_far.up + self.so_far.down), *failed])

    def details(self) -> list[tuple[str, str]]:
        """Everything that is known, by name."""
        now = self.so_far
        facts = [
            (kind, f"{percent(value)}, best {percent(now.best.get(kind))}") for kind, value in now.accuracy.items()
        ]
        if now.loss is not None:
            facts.append(("loss", f"{now.loss:.4g}"))
        facts.append(("bytes", f"{size(now.up)} up, {size(now.down)} down"))
        each = self.each()
        if each is not None:
            facts.append(("time", f"{each:.2g} s per round" if each < 10 else f"{duration(each)} per round"))
        facts.append(("failures", str(now.failures)))
        return facts

    def each(self) -> float | None:
        """Seconds per round, by the rounds of this process."""
        fresh = self.so_far.round - self.first
        return (time.monotonic() - self.began) / fresh if fresh else None

    def left(self) -> str:
        """How long it will take."""
        each = self.each()
        if each is None:
            return ""
        remaining = self.rounds - self.so_far.round
        return f"{duration(each * remaining)} left" if remaining else "done"


class Board:
    """Where runs are shown. Used in a `with` block; several threads may report to it."""

    def __init__(self, *, quiet: bool = False, every_round: bool = True) -> None:
        self._quiet = quiet
        self._every_round = every_round
        self._lines: list[Line] = []
        self._bars: Progress | None = None

    def __enter__(self) -> Board:
        if not self._quiet and sys.stderr.isatty():
            self._bars = bars(self._lines if self._every_round else None)
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    def add(self, label: str) -> Line:
        """A run that is being prepared."""
        line = Line(one_sentence(label))
        self._lines.append(line)
        if self._bars is not None:
            line.bar = self._bars.add_task(line.label, total=None, round="preparing", numbers="", left="")
        return line

    def begin(self, line: Line, rounds: int, before: Glance) -> None:
        """Its first round starts; `before` is what was done until its checkpoint."""
        line.rounds, line.first, line.so_far, line.began = rounds, before.round, before, time.monotonic()
        self._draw(line)

    def advance(self, line: Line, glance: Glance) -> None:
        """A round is done."""
        line.so_far.add(glance)
        self._draw(line)
        if self._bars is None and not self._quiet and self._every_round:
            facts = [f"{name} {value}" for name, value in line.details() if (name, value) != ("failures", "0")]
            say("  ".join([line.label, f"round {glance.round}/{line.rounds}", "; ".join([*facts, line.left()])]))

    def finish(self, line: Line, word: str) -> None:
        """A run of several has ended: its bar gives way to a line."""
        if self._bars is not None and line.bar is not None:
            self._bars.remove_task(line.bar)
        self.note(f"{line.label}  {word}  {line.numbers()}  {duration(time.monotonic() - line.began)}")

    def note(self, sentence: str) -> None:
        if self._quiet:
            return
        if self._bars is None:
            say(sentence)
            return
        try:
            self._bars.console.print(one_sentence(sentence), markup=False, soft_wrap=True)
        except RuntimeError:  # as in `say`
            say(sentence)

    def _draw(self, line: Line) -> None:
        if self._bars is not None and line.bar is not None:
            self._bars.update(
                line.bar,
                total=line.rounds,
                completed=line.so_far.round,
                round=f"round {line.so_far.round}/{line.rounds}",
                numbers=line.numbers(),
                left=line.left(),
            )


def bars(detailed: list[Line] | None) -> Progress:
    """A bar per run; with `detailed`, what is known of each of these lines stands below in full."""
    from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn
    from rich.table import Table
    from rich.text import Text

    class Full(Progress):
        def get_renderables(self) -> Iterable[RenderableType]:
            yield self.make_tasks_table(self.tasks)
            for line in detailed or []:
                if line.so_far.round:
                    grid = Table.grid(padding=(0, 2))
                    for name, value in line.details():
                        style = "red" if name == "failures" and line.so_far.failures else "cyan"
                        grid.add_row(Text(f"  {name}", style="dim"), Text(value, style=style))
                    yield grid

    columns: list[ProgressColumn] = [
        SpinnerColumn(),
        TextColumn("{task.description}", style="bold", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[round]}", markup=False),
    ]
    if detailed is None:
        columns.append(TextColumn("{task.fields[numbers]}", style="cyan", markup=False))
    columns.append(TextColumn("{task.fields[left]}", style="dim", markup=False))
    return Full(*columns, console=console(stderr=True), transient=True)


class Watcher:
    """Shows one run on a board: an observer of its experiment."""

    def __init__(self, board: Board, label: str) -> None:
        self._board = board
        self._line = board.add(label)

    def started(self, config: Config, folder: Path, done: int) -> None:
        self._board.begin(self._line, config.rounds, until(folder, done))

    def round_done(self, record: RoundRecord) -> None:
        self._board.advance(self._line, brief(record))

    def note(self, sentence: str) -> None:
        self._board.note(sentence)


def brief(record: RoundRecord) -> Glance:
    """What is shown of a round."""
    accuracy = {kind: record.accuracy[kind].value for kind in KINDS if kind in record.accuracy}
    return Glance(
        round=record.round,
        accuracy=accuracy,
        best=dict(accuracy),
        loss=record.loss,
        up=record.upload_bytes,
        down=record.download_bytes,
        failures=len(record.failures),
    )


def until(folder: Path, done: int) -> Glance:
    """What the rounds before a checkpoint gave. A round that ran twice counts once, as in the result."""
    total = Glance()
    if not done:
        return total
    from polyfed.runs.folder import RunFolder

    by_round: dict[int, Glance] = {}
    for event in RunFolder(folder).events():
        record = RoundRecord.from_damaged(event) if event.get("event") == "round" else None
        if record is not None and record.round <= done:
            by_round[record.round] = brief(record)
    for number in sorted(by_round):
        total.add(by_round[number])
    total.round = done
    return total
