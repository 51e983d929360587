"""What the scripts that write docs/results share: sweeps that skip finished runs, tables of run folders, notes.

A page is written from run folders alone; what is to be read from it stands beside it, in PAGE.notes.md, by hand.
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
    "CPU-sized settings: not comparable with any published number. *Final* is the last round, *best* the best round, "
    "chosen on test data. *Personal*: each client on its own held-out share. *Global*: each client on the common "
    "test set. Seconds are of runs that shared two cores, two at a time: compare them with each other only."
)


def sweep(
    preset: str, axes: Sequence[str], *, seeds: str, out: Path, jobs: str = "2", private: Sequence[str] = ()
) -> str:
    """Run what is not yet finished of a grid; the command, to be shown on the page.

    `private` are overrides that belong to this machine (where data lies): used, but not shown.
    """
    ending = ["--seeds", seeds, "--out", str(out), "--jobs", jobs]
    command = [sys.executable, "-m", "polyfed", "sweep", preset, *axes, *private, *ending, "--quiet"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return shlex.join(["polyfed", "sweep", preset, *axes, *ending])


def labelled(folders: Iterable[Path], label: Callable[[Mapping[str, Any]], str]) -> list[dict[str, Any]]:
    """The finished runs below some folders, each under the name that its config gets: one method's variants apart."""
    return [{**run.result, "method": label(run.config)} for run in finished(folders)]


def finished(folders: Iterable[Path]) -> list[Run]:
    """The finished runs below some folders; one that is not finished is an error, for the page would leave it out."""
    runs, skipped = load_runs(folders)
    if skipped:
        raise SystemExit("\n".join(skipped))
    return runs


def table(sources: Iterable[Path | Mapping[str, Any]], **options: Any) -> str:
    """Runs side by side as Markdown; `options` are those of polyfed.comparison.compare."""
    compared: Comparison = compare(sources, **options)
    return compared.to("md").rstrip() + "\n"


def section(title: str, *parts: str, commands: Sequence[str] = ()) -> str:
    """A headed part of a page: the commands that made its runs, then what they gave."""
    shown = ["```", *commands, "```", ""] if commands else []
    return "\n".join([f"## {title}", "", *shown, *(part.rstrip() + "\n" for part in parts)])


def versions(folder: Path) -> str:
    """What the runs below a folder were made with."""
    first = next(iter(sorted(folder.rglob("config.yaml"))))
    found = RunFolder(first.parent).config()["versions"]
    return f"Versions: {', '.join(f'{name} {value}' for name, value in found.items())}."


def plain_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table of words; numbers come formatted."""
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def grid(
    runs: Sequence[Run],
    row: Callable[[Run], str],
    column: Callable[[Run], str],
    columns: Sequence[str],
    read: Callable[[Mapping[str, Any]], float],
) -> str:
    """One number per method and setting as a Markdown table: mean ± sample deviation over the runs of a cell."""
    cells: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        cells.setdefault(row(run), {}).setdefault(column(run), []).append(read(run.result))
    rows = [[name, *(spread(found.get(c, [])) for c in columns)] for name, found in sorted(cells.items())]
    return plain_table(["method", *columns], rows)


def spread(values: Sequence[float], digits: int = 2, *, sign: bool = False) -> str:
    """Mean ± sample deviation; a dash for nothing. With `sign`, a gain shows its plus."""
    if not values:
        return "-"
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):{'+' if sign else ''}.{digits}f}{deviation}"


def personal_final(result: Mapping[str, Any]) -> float:
    return 100.0 * float(result["accuracy"]["personal"]["final"])


def write(name: str, *parts: str) -> Path:
    """Write docs/results/NAME.md from its parts and, last, from its notes."""
    page = DOCS / f"{name}.md"
    notes = DOCS / f"{name}.notes.md"
    last = [section("What to read from it", notes.read_text())] if notes.exists() else []
    page.write_text("\n".join([*(part.rstrip() + "\n" for part in parts), *last]).rstrip() + "\n")
    return page
