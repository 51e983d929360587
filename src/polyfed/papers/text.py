"""Write tables and claims of a paper as plain text, Markdown or JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from polyfed.comparison import Difference
from polyfed.comparison.formats import markdown_escaped
from polyfed.papers.claims import ClaimResult
from polyfed.papers.measures import measure_title
from polyfed.papers.paper_file import Paper, Scale
from polyfed.papers.results import CellResult, TableResult

FORMATS = ("table", "md", "json")
HEADING_WIDTH, CELL_WIDTH = 24, 50  # of columns in plain text
Lines = list[list[str]]  # of cells; the first line is the heading


def results_text(
    paper: Paper, scale: Scale, tables: Sequence[TableResult], claims: Sequence[ClaimResult], *, markdown: bool
) -> str:
    """Return all tables with their gains, then the claims."""
    parts = [table_text(paper, scale, table, markdown=markdown) for table in tables]
    parts.append(claims_text(claims, markdown=markdown))
    if claims:
        parts.append(comparisons_text(paper, scale, claims, markdown=markdown))
    return "\n\n".join(parts) + "\n"


def table_text(paper: Paper, scale: Scale, result: TableResult, *, markdown: bool) -> str:
    """Return a table: our values with the published ones in parentheses, then the gains over the baseline."""
    table = paper.tables[result.name]
    unit = "" if table.unit == "%" else f", in {table.unit}"
    words = f"{measure_title(table.measure)}: mean ± standard deviation over seeds (published number{unit})."
    parts = [_heading(table.title, markdown), words, *([table.note] if table.note else [])]
    parts.append(_grid(value_lines(paper, scale, result), markdown))
    if table.baseline in result.rows and len(result.rows) > 1:
        title = paper.rows[str(table.baseline)].title
        parts.append(f"Difference to {title} with the same seed, mean and 95 % interval over seeds:")
        parts.append(_grid(gain_lines(paper, scale, result), markdown))
    return "\n\n".join(parts)


def value_lines(paper: Paper, scale: Scale, result: TableResult) -> Lines:
    """Return the rows of a table with our values and the published ones."""
    digits = 2 if paper.tables[result.name].measure.of == "traffic" else 1
    lines = [["", *(paper.setting_title(setting, scale) for setting in result.settings)]]
    for row in result.rows:
        cells = [result.cells.get((setting, row)) for setting in result.settings]
        lines.append([paper.rows[row].title, *(_value(cell, digits) for cell in cells)])
    return lines


def gain_lines(paper: Paper, scale: Scale, result: TableResult) -> Lines:
    """Return the differences of all rows to the baseline's row."""
    lines = [["", *(paper.setting_title(setting, scale) for setting in result.settings)]]
    for row in result.rows:
        if row != paper.tables[result.name].baseline:
            cells = [result.cells.get((setting, row)) for setting in result.settings]
            gains = ["" if cell is None else difference_text(cell.gain) for cell in cells]
            lines.append([paper.rows[row].title, *gains])
    return lines


def _value(cell: CellResult | None, digits: int) -> str:
    if cell is None:
        return ""
    published = "" if cell.published is None else f" ({published_text(cell.published)})"
    if cell.mean is None:
        return f"not run{published}"
    spread = "" if cell.std is None else f" ± {cell.std:.{digits}f}"
    seeds = f", {len(cell.values)} of {len(cell.values) + len(cell.missing)} seeds" if cell.missing else ""
    return f"{cell.mean:.{digits}f}{spread}{seeds}{published}"


def published_text(value: float) -> str:
    """Format a published number with one decimal, or two if it has them."""
    return f"{value:.2f}".removesuffix("0")


def difference_text(gap: Difference | None, digits: int = 1) -> str:
    """Format a difference with its interval, such as '+4.1 [+1.0, +7.2]'."""
    if gap is None:
        return "not run"
    if gap.low is None or gap.high is None:
        return f"{gap.mean:+.{digits}f} (1 seed)"
    return f"{gap.mean:+.{digits}f} [{gap.low:+.{digits}f}, {gap.high:+.{digits}f}]"


def claims_text(claims: Sequence[ClaimResult], *, markdown: bool) -> str:
    """Return the claims with their verdicts."""
    words = (
        "A claim is *shown* if the 95 % interval of the paired difference over seeds is above its margin in all "
        "comparisons, *opposite* if the interval is below the margin in one of them, and *not shown* otherwise."
    )
    table = _grid(claim_lines(claims), markdown) if claims else "There are no claims about these tables."
    return "\n\n".join([_heading("Claims", markdown), words if markdown else words.replace("*", ""), table])


def comparisons_text(paper: Paper, scale: Scale, claims: Sequence[ClaimResult], *, markdown: bool) -> str:
    """Return every comparison of the claims with its interval."""
    words = ["Paired differences over seeds, in the unit of the table. Positive ones are in favour of the claim."]
    if missing := sum(result.count("not run") for result in claims):
        words.append(f"Comparisons without runs are left out: {missing}.")
    lines = comparison_lines(paper, scale, claims)
    table = [_grid(lines, markdown)] if len(lines) > 1 else []
    return "\n\n".join([_heading("Comparisons of the claims", markdown), " ".join(words), *table])


def claim_lines(claims: Sequence[ClaimResult]) -> Lines:
    """Return one line per claim."""
    lines = [["", "claim", "where", "verdict", "comparisons"]]
    for number, result in enumerate(claims, 1):
        claim = result.claim
        total = len(result.comparisons)
        counts = [
            f"{count} {name}"
            for name in ("shown", "not shown", "opposite", "not run")
            if (count := result.count(name))
        ]
        lines.append([str(number), claim.says, claim.where, result.verdict, f"{', '.join(counts)} of {total}"])
    return lines


def comparison_lines(paper: Paper, scale: Scale, claims: Sequence[ClaimResult]) -> Lines:
    """Return one line per comparison that was run."""
    lines = [["claim", "setting", "row", "compared with", "margin", "difference", "verdict"]]
    for number, result in enumerate(claims, 1):
        better = paper.rows[result.claim.better].title
        for one in (one for one in result.comparisons if one.difference is not None):
            setting, than = paper.setting_title(one.setting, scale), paper.rows[one.than].title
            gap = difference_text(one.difference)
            lines.append([str(number), setting, better, than, f"{result.claim.by:+g}", gap, one.verdict])
    return lines


def results_json(
    paper: Paper, scale: Scale, tables: Sequence[TableResult], claims: Sequence[ClaimResult]
) -> dict[str, Any]:
    """Return tables and claims as JSON values, in full precision."""
    return {
        "paper": paper.title,
        "scale": scale,
        "tables": {
            result.name: [
                {
                    "setting": setting,
                    "row": row,
                    "values": {str(seed): value for seed, value in cell.values.items()},
                    "mean": cell.mean,
                    "std": cell.std,
                    "published": cell.published,
                    "gain": None if cell.gain is None else asdict(cell.gain),
                    "missing_seeds": list(cell.missing),
                }
                for (setting, row), cell in result.cells.items()
            ]
            for result in tables
        },
        "claims": [
            {
                "says": result.claim.says,
                "where": result.claim.where,
                "by": result.claim.by,
                "verdict": result.verdict,
                "comparisons": [asdict(one) for one in result.comparisons],
            }
            for result in claims
        ],
    }


def _heading(text: str, markdown: bool) -> str:
    return f"## {markdown_escaped(text)}" if markdown else f"{text}\n{'=' * len(text)}"


def _grid(lines: Lines, markdown: bool) -> str:
    return markdown_table(lines) if markdown else plain_table(lines)


def markdown_table(lines: Lines) -> str:
    """Return a Markdown table; the first line is the heading."""
    head, *rows = [[markdown_escaped(cell) for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *rows])


def plain_table(lines: Lines) -> str:
    """Return aligned columns, with long cells on several lines; the first line is the heading."""
    head, *rows = lines
    wrapped = [
        [_wrap(cell, HEADING_WIDTH) for cell in head],
        *([_wrap(cell, CELL_WIDTH) for cell in row] for row in rows),
    ]
    widths = [max(len(part) for line in wrapped for part in line[i]) for i in range(len(head))]
    shown: list[str] = []
    for number, line in enumerate(wrapped):
        for part in range(max(len(cell) for cell in line)):
            cells = [cell[part] if part < len(cell) else "" for cell in line]
            shown.append("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())
        if number == 0:
            shown.append("  ".join("-" * width for width in widths))
    return "\n".join(shown)


def _wrap(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width) or [""]
