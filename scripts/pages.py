"""Shared functions of the scripts that write docs/results: sweeps, tables and pages.

A page is written from run folders. Its conclusions are written by hand, in PAGE.notes.md.
"""

from __future__ import annotations

import shlex
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from polyfed.comparison import Comparison, Run, compare, load_runs
from polyfed.runs.folder import RunFolder

DOCS = Path(__file__).parent.parent / "docs" / "results"
CAPTION = (
    "CPU-sized settings: not comparable with published numbers. *Final* is the last round, *best* the best round, "
    "chosen on test data. *Personal*: each client on its own held-out data. *Global*: each client on the common "
    "test set. Seconds are from two runs at a time on two cores: compare them with each other only."
)


def sweep(
    preset: str, axes: Sequence[str], *, seeds: str, out: Path, jobs: str = "2", private: Sequence[str] = ()
) -> str:
    """Run the unfinished runs of a sweep, and return its command for the page.

    `private` are overrides that only hold on this machine, such as the folder of a dataset. The page does not show them.
    """
    ending = ["--seeds", seeds, "--out", str(out), "--jobs", jobs]
    command = [sys.executable, "-m", "polyfed", "sweep", preset, *axes, *private, *ending, "--quiet"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return shlex.join(["polyfed", "sweep", preset, *axes, *ending])


def labelled_runs(folders: Iterable[Path], label: Callable[[Mapping[str, Any]], str]) -> list[dict[str, Any]]:
    """Return the results of finished runs, with a method name that tells variants of a method apart."""
    return [{**run.result, "method": label(run.config)} for run in finished_runs(folders)]


def finished_runs(folders: Iterable[Path]) -> list[Run]:
    """Return the finished runs in some folders. Exit if a run is not finished: the page would lack it."""
    runs, unfinished = load_runs(folders)
    if unfinished:
        raise SystemExit("\n".join(unfinished))
    return runs


def comparison_table(sources: Iterable[Path | Mapping[str, Any]], **options: Any) -> str:
    """Return a Markdown table that compares runs; `options` are those of polyfed.comparison.compare."""
    compared: Comparison = compare(sources, **{"baseline": None, **options})
    return compared.to("md").rstrip() + "\n"


def section(title: str, *parts: str, commands: Sequence[str] = ()) -> str:
    """Return a section of a page: its commands, then its parts."""
    shown = ["<!-- checked: takes minutes to hours -->", "```bash", *commands, "```", ""] if commands else []
    return "\n".join([f"## {title}", "", *shown, *(part.rstrip() + "\n" for part in parts)])


def versions(folder: Path) -> str:
    """Return the versions of the software that the runs in a folder were made with."""
    first = next(iter(sorted(folder.rglob("config.yaml"))))
    recorded = RunFolder(first.parent).config()["versions"]
    return f"Versions: {', '.join(f'{name} {value}' for name, value in recorded.items() if name != 'code')}."


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table of formatted cells."""
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def grid(
    runs: Sequence[Run],
    row: Callable[[Run], str],
    column: Callable[[Run], str],
    columns: Sequence[str],
    read: Callable[[Mapping[str, Any]], float],
) -> str:
    """Return a Markdown table of one number by row and column: mean ± sample standard deviation over runs."""
    cells: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        cells.setdefault(row(run), {}).setdefault(column(run), []).append(read(run.result))
    rows = [[name, *(mean_and_std(values.get(c, [])) for c in columns)] for name, values in sorted(cells.items())]
    return markdown_table(["method", *columns], rows)


def mean_and_std(values: Sequence[float], digits: int = 2, *, sign: bool = False) -> str:
    """Format mean ± sample standard deviation, or a dash without values. With `sign`, positive means have a plus."""
    if not values:
        return "-"
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):{'+' if sign else ''}.{digits}f}{deviation}"


def personal_final(result: Mapping[str, Any]) -> float:
    return 100.0 * float(result["accuracy"]["personal"]["final"])


def write(name: str, *parts: str) -> Path:
    """Write docs/results/NAME.md from its parts, followed by its notes."""
    page = DOCS / f"{name}.md"
    notes = DOCS / f"{name}.notes.md"
    last = [section("What to read from it", notes.read_text())] if notes.exists() else []
    page.write_text("\n".join([*(part.rstrip() + "\n" for part in parts), *last]).rstrip() + "\n")
    return page
