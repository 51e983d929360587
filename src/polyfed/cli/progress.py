"""Progress on stderr: a bar per run in a terminal, a line per round elsewhere, nothing when quiet."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from polyfed.cli.show import console, duration, one_sentence, percent, say, size

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from polyfed.config import Config


@dataclass
class Line:
    """One run that is shown."""

    label: str
    rounds: int = 0
    first: int = 0  # rounds that were done before this process came
    done: int = 0
    sent: int = 0
    personal: float | None = None
    global_: float | None = None
    began: float = field(default_factory=time.monotonic)
    bar: TaskID | None = None

    def numbers(self) -> str:
        """Accuracy and bytes so far."""
        measured = {"personal": self.personal, "global": self.global_}
        shown = [f"{word} {percent(value)}" for word, value in measured.items() if value is not None]
        return "  ".join([*shown, size(self.sent)])

    def left(self) -> str:
        """How long it will take, by the rounds of this process."""
        fresh = self.done - self.first
        if not fresh:
            return ""
        each = (time.monotonic() - self.began) / fresh
        return f"{duration(each * (self.rounds - self.done))} left" if self.done < self.rounds else "done"


class Board:
    """Where runs are shown. Used in a `with` block; several threads may report to it."""

    def __init__(self, *, quiet: bool = False, every_round: bool = True) -> None:
        self._quiet = quiet
        self._every_round = every_round
        self._bars: Progress | None = None

    def __enter__(self) -> Board:
        if not self._quiet and sys.stderr.isatty():
            from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

            self._bars = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}", style="bold", markup=False),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[round]}", markup=False),
                TextColumn("{task.fields[numbers]}", style="cyan", markup=False),
                TextColumn("{task.fields[left]}", style="dim", markup=False),
                console=console(stderr=True),
                transient=True,
            )
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
        if self._bars is not None:
            line.bar = self._bars.add_task(line.label, total=None, round="preparing", numbers="", left="")
        return line

    def begin(self, line: Line, rounds: int, done: int, sent: int) -> None:
        """Its first round starts."""
        line.rounds, line.first, line.done, line.sent, line.began = rounds, done, done, sent, time.monotonic()
        self._draw(line)

    def advance(self, line: Line, number: int, accuracy: Mapping[str, float | None], sent: int) -> None:
        """A round is done. A round that was not evaluated leaves the accuracies as they were."""
        line.done, line.sent = number, line.sent + sent
        line.personal = accuracy.get("personal", line.personal)
        line.global_ = accuracy.get("global", line.global_)
        self._draw(line)
        if self._bars is None and not self._quiet and self._every_round:
            say("  ".join([line.label, f"round {number}/{line.rounds}", line.numbers(), line.left()]))

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
                completed=line.done,
                round=f"round {line.done}/{line.rounds}",
                numbers=line.numbers(),
                left=line.left(),
            )


class Watcher:
    """Shows one run on a board: an observer of its experiment."""

    def __init__(self, board: Board, label: str) -> None:
        self._board = board
        self._line = board.add(label)

    def started(self, config: Config, folder: Path, done: int) -> None:
        self._board.begin(self._line, config.rounds, done, bytes_of_rounds(folder, done))

    def round_done(self, record: dict[str, Any]) -> None:
        self._board.advance(self._line, *brief(record))

    def note(self, sentence: str) -> None:
        self._board.note(sentence)


def brief(record: Mapping[str, Any]) -> tuple[int, dict[str, float | None], int]:
    """What is shown of a round: its number, its accuracies, its bytes both ways."""
    accuracy = {
        kind: record["accuracy"][kind]["value"] for kind in ("personal", "global") if kind in record["accuracy"]
    }
    return record["round"], accuracy, sum(record["up"].values()) + sum(record["down"].values())


def bytes_of_rounds(folder: Path, done: int) -> int:
    """What the rounds before a checkpoint sent. A round that ran twice counts once, as in the result."""
    if not done:
        return 0
    from polyfed.runs.folder import RunFolder

    by_round: dict[int, int] = {}
    for event in RunFolder(folder).events():
        if event.get("event") == "round" and event["round"] <= done:
            by_round[event["round"]] = brief(event)[2]
    return sum(by_round.values())
