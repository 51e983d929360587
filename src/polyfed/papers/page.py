"""The results page of a paper: notes, claims, tables, and how each run can be repeated."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path

from polyfed.papers.claims import ClaimResult
from polyfed.papers.grid import cells_of, command_overrides
from polyfed.papers.paper_file import Paper, Scale
from polyfed.papers.results import CellRuns, TableResult
from polyfed.papers.text import claims_text, comparisons_text, markdown_table, table_text

HASH_CHARACTERS = 16  # of a state_hash on a page
CPU = (
    "The settings are sized for a CPU: small models, small datasets and few rounds. Published numbers stand in "
    "parentheses; they come from other data and larger models, so compare orders and differences, not values."
)


def notes_path(page: Path) -> Path:
    """Return the file with the hand-written part of a page."""
    return page.with_suffix(".notes.md")


def page_text(
    name: str,
    paper: Paper,
    scale: Scale,
    tables: Sequence[TableResult],
    claims: Sequence[ClaimResult],
    runs: CellRuns,
    seeds: Sequence[int],
    *,
    more: Sequence[str] = (),
    notes: str | None = None,
) -> str:
    """Return the page of a paper as Markdown. It has no run times: runs may have shared their cores.

    `more` are overrides of all runs, and `notes` is the hand-written text that the page starts with.
    """
    shown = [table.name for table in tables]
    finished = _finished(paper, tables)
    chosen = shown if len(shown) == 1 else []
    changes = [word for override in more for word in ("--set", override)]
    seeds_text = ",".join(map(str, seeds))
    command = ["polyfed", "reproduce", name, *chosen, "--scale", scale, "--seeds", seeds_text, *changes]
    parts = [
        f"# {paper.title}: results",
        *([notes.strip()] if notes else []),
        f"{paper.reference}. {paper.measured_by}",
        *([CPU] if scale == "cpu" else []),
        *_missing(paper, tables, finished),
        claims_text(claims, markdown=True),
        *(table_text(paper, scale, table, markdown=True) for table in finished),
        *([comparisons_text(paper, scale, claims, markdown=True)] if claims else []),
        "## Reproduce these tables",
        "<!-- not run: takes hours -->\n```bash\n" + shlex.join(command) + "\n```",
        "The same settings one by one:",
        "<!-- not run: takes hours -->\n```bash\n"
        + "\n".join(_commands(paper, scale, shown, seeds_text, more))
        + "\n```",
        "## Runs",
        _versions(runs),
        markdown_table(_run_lines(paper, scale, shown, runs)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _finished(paper: Paper, tables: Sequence[TableResult]) -> list[TableResult]:
    """Return the tables of the page, without rows that have no run.

    Tables with one row are left out, and so are incomplete ones whose rows all stand in tables above them.
    """
    finished: list[TableResult] = []
    above: set[tuple[object, ...]] = set()
    for table in tables:
        measure = paper.tables[table.name].measure
        part = _rows_with_values(table)
        values = {(measure, *cell) for cell, result in part.cells.items() if result.values}
        if len(part.rows) > 1 and (part.rows == table.rows or not values <= above):
            finished.append(part)
        above |= values
    return finished


def _rows_with_values(table: TableResult) -> TableResult:
    """Return a table without the rows that have no finished run."""
    kept = [row for row in table.rows if any(c.values for (_, of), c in table.cells.items() if of == row)]
    cells = {cell: result for cell, result in table.cells.items() if cell[1] in kept}
    return dataclasses.replace(table, rows=tuple(kept), cells=cells)


def _missing(paper: Paper, tables: Sequence[TableResult], finished: Sequence[TableResult]) -> list[str]:
    """Return a sentence about the tables and rows that the page leaves out, and one about missing seeds."""
    shown = {table.name for table in finished}
    rows = dict.fromkeys(row for table in tables for row in table.rows)
    with_values = {row for table in tables for row in _rows_with_values(table).rows}
    seeds = {row for table in finished for (_, row), cell in table.cells.items() if cell.missing}
    parts = {
        "Tables that have not been run": [
            paper.tables[table.name].title for table in tables if table.name not in shown
        ],
        "Rows that have not been run": [paper.rows[row].title for row in rows if row not in with_values],
        "Rows with fewer seeds": [paper.rows[row].title for row in rows if row in seeds],
    }
    return [f"**{title}:** {'; '.join(names)}." for title, names in parts.items() if names]


def _commands(paper: Paper, scale: Scale, tables: Sequence[str], seeds: str, more: Sequence[str]) -> list[str]:
    """Return one `polyfed sweep` command per distinct setting and row."""
    commands: dict[str, None] = {}
    for cell in cells_of(paper, scale, tables):
        preset, overrides = command_overrides(paper, scale, cell)
        commands[shlex.join(["polyfed", "sweep", preset, *overrides, *more, "--seeds", seeds])] = None
    return list(commands)


def _versions(runs: CellRuns) -> str:
    """Return the versions of the software that the runs were made with."""
    recorded = [run.config.get("versions") or {} for members in runs.values() for run in members]
    texts = dict.fromkeys(
        ", ".join(f"{name} {value}" for name, value in versions.items() if name != "code") for versions in recorded
    )
    return "" if not texts else f"Versions: {'; '.join(texts)}."


def _run_lines(paper: Paper, scale: Scale, tables: Sequence[str], runs: CellRuns) -> list[list[str]]:
    """Return one line per run. Settings that differ in what is measured share their runs."""
    lines: dict[tuple[str, ...], None] = {("setting", "row", "seed", "state_hash"): None}
    for cell in cells_of(paper, scale, tables):
        setting, row = paper.setting_title(cell[0], scale), paper.rows[cell[1]]
        if row.moment is None:  # other moments are read from the same runs
            for run in runs.get(cell, ()):
                lines[setting, row.title, str(run.seed), str(run.result["state_hash"])[:HASH_CHARACTERS]] = None
    return [list(line) for line in lines]
