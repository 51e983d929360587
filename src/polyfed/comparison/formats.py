"""Write a comparison as a terminal table, CSV, Markdown, LaTeX or HTML, with names escaped for each format."""

from __future__ import annotations

import csv
import html
import io
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, NamedTuple

from polyfed.comparison.measures import Measure, compared_measures

if TYPE_CHECKING:
    from polyfed.comparison.gain import Difference
    from polyfed.comparison.table import Comparison, Row


class Cell(NamedTuple):
    """A cell of the table. `name` cells hold text from the config."""

    text: str
    best: bool = False
    name: bool = False


def headings(comparison: Comparison) -> list[Cell]:
    """Return the headings: keys, number of runs, gains over the baseline, then the other measures."""
    cells = [Cell(key, name=True) for key in comparison.keys] + [Cell("n")]
    gains = [f"gain, {measure.heading}" for measure in _with_gain(comparison)]
    return [*cells, *map(Cell, gains), *(Cell(measure.heading) for measure in comparison.measures)]


def column_ids(comparison: Comparison) -> list[str]:
    """Return the identifiers of the columns of `headings`: keys, 'n', 'gain MEASURE' and measures."""
    gains = [f"gain {measure.key}" for measure in _with_gain(comparison)]
    return [*comparison.keys, "n", *gains, *(measure.key for measure in comparison.measures)]


def cells_of(comparison: Comparison, row: Row, *, fewer_digits: int = 0) -> list[Cell]:
    """Return the cells of a row, with fewer decimals of accuracies and metrics if the table must be narrow."""
    cells = [Cell(row.group[key], name=True) for key in comparison.keys]
    cells.append(Cell(str(row.runs)))
    for measure in _with_gain(comparison):
        gap, digits = row.differences.get(measure.key), measure.digits - fewer_digits
        cells.append(Cell(_format_difference(gap, digits) if row.differences else "baseline"))
    for measure in comparison.measures:
        spread, digits = row.values[measure.key], measure.digits - (fewer_digits if measure.kind else 0)
        text = "-" if spread is None else f"{spread.mean:.{digits}f}"
        # bytes are mostly equal for all seeds: leave out a standard deviation of 0.000
        if spread is not None and spread.std is not None and (spread.std >= 0.0005 or "mib" not in measure.key):
            text += f" ± {spread.std:.{digits}f}"
        cells.append(Cell(text, best=measure.key in row.best))
    return cells


def _with_gain(comparison: Comparison) -> tuple[Measure, ...]:
    return () if comparison.baseline is None else compared_measures(comparison.measures)


def _format_difference(gap: Difference | None, digits: int) -> str:
    if gap is None:
        return "-"
    if gap.low is None or gap.high is None:
        return f"{gap.mean:+.{digits}f} (1 seed)"
    return f"{gap.mean:+.{digits}f} [{gap.low:+.{digits}f}, {gap.high:+.{digits}f}]"


def printable(text: str) -> str:
    """Replace control characters and line breaks by spaces."""
    return "".join(c if c.isprintable() else " " for c in text)


def table(comparison: Comparison) -> str:
    """Return plain text in aligned columns, however wide."""
    from polyfed.comparison.text_table import text_table

    return text_table(comparison)


def markdown(comparison: Comparison) -> str:
    def line(cells: list[Cell]) -> str:
        texts = [markdown_escaped(cell.text) if cell.name else cell.text for cell in cells]
        return "| " + " | ".join(f"**{t}**" if c.best else t for t, c in zip(texts, cells, strict=True)) + " |"

    rule = "|" + "|".join([" --- "] * len(comparison.keys) + [" ---: "] * _number_columns(comparison)) + "|"
    rows = [line(cells_of(comparison, row)) for row in comparison.rows]
    caption = markdown_escaped(comparison.caption)
    return "\n".join([line(headings(comparison)), rule, *rows, "", f"{caption} Bold: best mean."]) + "\n"


def markdown_escaped(text: str) -> str:
    """Escape the characters that Markdown would interpret."""
    return re.sub(r"([\\`*_{}\[\]<>#|~&!$])", r"\\\1", printable(text))


_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "±": r"$\pm$",
    "Δ": r"$\Delta$",
    **{c: "\\" + c for c in "{}$&#%_"},
}


def latex(comparison: Comparison) -> str:
    """Return a LaTeX table. The document must load booktabs."""

    def line(cells: list[Cell]) -> str:
        texts = [_latex_escaped(cell.text) for cell in cells]
        return " & ".join(rf"\textbf{{{t}}}" if c.best else t for t, c in zip(texts, cells, strict=True)) + r" \\"

    columns = "l" * len(comparison.keys) + "r" * _number_columns(comparison)
    rows = [line(cells_of(comparison, row)) for row in comparison.rows]
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_latex_escaped(comparison.caption)} Bold: best mean.}}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        line(headings(comparison)),
        r"\midrule",
        *rows,
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _latex_escaped(text: str) -> str:
    return "".join(_LATEX.get(c, c) for c in printable(text))


_STYLE = (
    ":root{color-scheme:light dark}body{font-family:system-ui,sans-serif;margin:1.5em;overflow-x:auto}"
    "table{border-collapse:collapse}caption{caption-side:bottom;text-align:left;padding-top:.6em;opacity:.8}"
    "th,td{padding:.3em .8em;text-align:right;border-bottom:1px solid #8886;white-space:nowrap}"
    "th.name,td.name{text-align:left}"
)


def html_page(comparison: Comparison) -> str:
    """Return a self-contained HTML page."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1"><title>polyfed comparison</title>'
        f"<style>{_STYLE}</style></head>\n<body>\n{html_table(comparison)}\n</body></html>\n"
    )


def html_table(comparison: Comparison) -> str:
    def line(cells: list[Cell], tag: str) -> str:
        parts = []
        for cell in cells:
            text = html.escape(printable(cell.text))
            kind = ' class="name"' if cell.name else ""
            parts.append(f"<{tag}{kind}>{f'<strong>{text}</strong>' if cell.best else text}</{tag}>")
        return f"<tr>{''.join(parts)}</tr>"

    rows = "\n".join(line(cells_of(comparison, row), "td") for row in comparison.rows)
    return (
        f"<table>\n<caption>{html.escape(comparison.caption)} Bold: best mean.</caption>\n"
        f"<thead>{line(headings(comparison), 'th')}</thead>\n<tbody>\n{rows}\n</tbody>\n</table>"
    )


def comma_separated(comparison: Comparison) -> str:
    """Return CSV in full precision. The column `best` names the measures in which a row is the best."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    numbers = [f"{measure.key}_{part}" for measure in comparison.measures for part in ("mean", "std")]
    gains = [measure.key for measure in _with_gain(comparison)]
    gain_parts = [f"{key}_difference_{part}" for key in gains for part in ("mean", "low", "high", "n", "over")]
    writer.writerow([*map(_without_formula, comparison.keys), "n", *gain_parts, *numbers, "best"])
    for row in comparison.rows:
        line: list[object] = [_without_formula(row.group[key]) for key in comparison.keys]
        line.append(row.runs)
        for key in gains:
            gap = row.differences.get(key)
            values = [] if gap is None else [gap.mean, gap.low, gap.high, gap.n, gap.over]
            line += ["" if value is None else value for value in values] or [""] * 5
        for measure in comparison.measures:
            spread = row.values[measure.key]
            line += ["", ""] if spread is None else [spread.mean, "" if spread.std is None else spread.std]
        line.append(" ".join(measure.key for measure in comparison.measures if measure.key in row.best))
        writer.writerow(line)
    return text.getvalue()


def _without_formula(text: str) -> str:
    """Quote text that a spreadsheet would run as a formula."""
    text = printable(text)
    number = re.fullmatch(r"[-+]?[\d.]+(e[-+]?\d+)?", text)
    return f"'{text}" if text[:1] in tuple("=+-@") and text != "-" and not number else text


def _number_columns(comparison: Comparison) -> int:
    return len(headings(comparison)) - len(comparison.keys)


def as_json(comparison: Comparison) -> str:
    """Return everything as JSON: rows with settings, means, standard deviations, gains and seeds, and the notes."""
    rows = [
        {
            "settings": dict(row.group),
            "runs": row.runs,
            "seeds": list(row.seeds),
            "values": {key: None if spread is None else asdict(spread) for key, spread in row.values.items()},
            "best": sorted(row.best),
            "gains": {key: None if gap is None else asdict(gap) for key, gap in row.differences.items()},
        }
        for row in comparison.rows
    ]
    content = {
        "keys": list(comparison.keys),
        "baseline": comparison.baseline,
        "rows": rows,
        "notes": list(comparison.notes),
    }
    return json.dumps(content, indent=1) + "\n"


FORMATS: Mapping[str, Callable[[Comparison], str]] = {
    "table": table,
    "csv": comma_separated,
    "md": markdown,
    "latex": latex,
    "html": html_page,
    "json": as_json,
}
