"""The results page of a paper: notes, claims, tables, and how each run can be repeated."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from polyfed.papers.claims import ClaimResult
from polyfed.papers.grid import Cell, cells_of, command_overrides
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
    chosen = shown if len(shown) == 1 else []
    changes = [word for override in more for word in ("--set", override)]
    seeds_text = ",".join(map(str, seeds))
    command = ["polyfed", "reproduce", name, *chosen, "--scale", scale, "--seeds", seeds_text, *changes]
    parts = [
        f"# {paper.title}: results",
        *([notes.strip()] if notes else []),
        f"{paper.reference}. {paper.measured_by}",
        *([CPU] if scale == "cpu" else []),
        *_missing(paper, tables),
        claims_text(claims, markdown=True),
        *(table_text(paper, scale, table, markdown=True) for table in tables),
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


def _missing(paper: Paper, tables: Sequence[TableResult]) -> list[str]:
    """Return a sentence about the cells without all seeds."""
    cells: dict[Cell, int] = {}
    total = 0
    for table in tables:
        for cell, result in table.cells.items():
            total += len(result.values) + len(result.missing) if cell not in cells else 0
            cells.setdefault(cell, len(result.missing))
    count = sum(cells.values())
    if not count:
        return []
    rows = dict.fromkeys(paper.rows[row].title for (_, row), missing in cells.items() if missing)
    return [f"**Not finished:** {count} of {total} values are missing, in the rows {', '.join(rows)}."]


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
    lines = [["setting", "row", "seed", "state_hash"]]
    for cell in cells_of(paper, scale, tables):
        setting, row = paper.setting_title(cell[0], scale), paper.rows[cell[1]]
        if row.moment is None:  # other moments are read from the same runs
            for run in runs.get(cell, ()):
                lines.append([setting, row.title, str(run.seed), str(run.result["state_hash"])[:HASH_CHARACTERS]])
    return lines
