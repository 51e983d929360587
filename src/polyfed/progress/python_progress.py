"""Progress of `polyfed.run`: a bar in a notebook or a terminal, nothing elsewhere unless it is asked for."""

from __future__ import annotations

import html
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from polyfed.progress.board import ProgressBoard, ProgressObserver, RunProgress, snapshot_of, snapshot_until
from polyfed.runs.records import RoundRecord

if TYPE_CHECKING:
    from polyfed.config import Config


class RunObserver(Protocol):
    """Callbacks of a run, as `polyfed.experiment.Observer` has them."""

    def started(self, config: Config, folder: Path, done: int) -> None: ...

    def round_done(self, record: RoundRecord) -> None: ...

    def note(self, sentence: str) -> None: ...


@contextmanager
def progress_observers(progress: bool | None, label: str) -> Iterator[list[RunObserver]]:
    """Yield the observers that show a run's progress. None: only in a notebook or a terminal."""
    if progress is False or (progress is None and not in_notebook() and not sys.stderr.isatty()):
        yield []
    elif in_notebook():
        yield [NotebookProgress(label)]
    else:
        with ProgressBoard() as board:
            yield [ProgressObserver(board, label)]


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")


class NotebookProgress:
    """Shows a run below the cell of a notebook: a bar, the numbers so far, and notes."""

    def __init__(self, label: str) -> None:
        self._run = RunProgress(label)
        self._notes: list[str] = []
        self._handle: Any = None

    def started(self, config: Config, folder: Path, done: int) -> None:
        from IPython.display import HTML, display

        self._run.rounds, self._run.resumed_at = config.rounds, done
        self._run.total = snapshot_until(folder, done)
        self._handle = display(HTML(self.as_html()), display_id=True)

    def round_done(self, record: RoundRecord) -> None:
        self._run.total.add(snapshot_of(record))
        self._draw()

    def note(self, sentence: str) -> None:
        self._notes.append(sentence)
        self._draw()

    def as_html(self) -> str:
        """Return the bar and the numbers as HTML."""
        run = self._run
        text = f"{run.label}, round {run.total.round}/{run.rounds}: {run.headline()} {run.remaining_time()}"
        bar = f'<progress value="{run.total.round}" max="{run.rounds}"></progress>'
        notes = "".join(f"<br>{html.escape(note)}" for note in self._notes)
        return f"<div>{bar} {html.escape(text.strip())}{notes}</div>"

    def _draw(self) -> None:
        if self._handle is not None:
            from IPython.display import HTML

            self._handle.update(HTML(self.as_html()))
