"""`polyfed.report` and `polyfed.figure`: the commands of the same names, for runs and results in Python."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from polyfed.comparison.table import AUTO
from polyfed.errors import InputError
from polyfed.report import figure_kinds
from polyfed.report.figure_spec import Options
from polyfed.report.page import write_report
from polyfed.runs.records import Result

Runs = str | Path | Result | Iterable[str | Path | Result]


@dataclass(frozen=True)
class Figure:
    """A figure of runs. A notebook shows it; `save` writes it to a file."""

    title: str
    caption: str
    png: bytes = field(repr=False)

    def save(self, path: str | Path) -> Path:
        """Write the figure to a .png file."""
        path = Path(path)
        if path.suffix.lower() != ".png":
            raise InputError(
                f"the figure's file is '{path}'; for other formats, use polyfed.figure(..., out='{path}')"
            )
        path.write_bytes(self.png)
        return path

    def _repr_png_(self) -> bytes:
        return self.png


def report(runs: Runs, out: str | Path | None = None, *, by: Sequence[str] = (), baseline: str = AUTO) -> Path:
    """Write a self-contained HTML report and return its path.

    Args:
        runs: Results, run folders or folders of runs, one or several.
        out: The HTML file. None: `report.html` in the first folder.
        by: Config keys by which runs are grouped.
        baseline: Method that others are compared with; by default `local`, if there is a run of it.

    Examples:
        >>> polyfed.report(["runs/local", "runs/digits"], "report.html").exists()
        True
    """
    folders = run_folders(runs)
    path = Path(out) if out is not None else folders[0] / "report.html"
    _, broken = write_report(folders, path, by=by, baseline=baseline)
    _warn(broken)
    return path


def figure(
    kind: str,
    runs: Runs,
    out: str | Path | None = None,
    *,
    measure: str = "personal",
    against: str = "bytes",
    by: Sequence[str] = (),
    round: int | None = None,
    baseline: str = "local",
    width: float | None = None,
    height: float | None = None,
) -> Figure:
    """Draw a figure of runs, such as `polyfed.figure("curves", result)`, and return it.

    Args:
        kind: Kind of figure; `polyfed.report.KINDS` describes all of them.
        runs: Results, run folders or folders of runs, one or several.
        out: File to write: .png, .svg, .pdf, or .csv for the numbers. None: write no file.
        measure: Accuracy to show, 'personal' or 'global'.
        against: Cost axis, 'bytes' or 'seconds'.
        by: Config keys by which runs are grouped.
        round: Round to show in figures of one round. None: the last saved one.
        baseline: Method that `gain` and `client-gain` compare with.
        width: Width in inches.
        height: Height in inches.

    Examples:
        >>> polyfed.figure("curves", "runs/digits", "curves.pdf").title
        'Personal accuracy by round'
    """
    folders, options = run_folders(runs), Options(measure, against, tuple(by), round, baseline)
    if out is not None:
        figure_kinds.figure(kind, folders, out, options=options, width=width, height=height)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "figure.png"
        spec, broken = figure_kinds.figure(kind, folders, file, options=options, width=width, height=height)
        _warn(broken)
        return Figure(spec.title, spec.caption, file.read_bytes())


def run_folders(runs: Runs) -> list[Path]:
    """Return the folders of results and paths. Raise `InputError` for a result without a folder."""
    sources = [runs] if isinstance(runs, str | Path | Result) else list(runs)
    if not sources:
        raise InputError("no runs are given; expected results or run folders")
    folders = []
    for source in sources:
        folder = source.folder if isinstance(source, Result) else source
        if folder is None:
            raise InputError("this result was not read from a run folder; give the folder instead")
        folders.append(Path(folder))
    return folders


def _warn(messages: Iterable[str]) -> None:
    for message in messages:
        warnings.warn(message, stacklevel=3)
