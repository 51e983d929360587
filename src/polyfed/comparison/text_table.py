"""Write a comparison as a table for a terminal, in as many columns as fit."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from polyfed.comparison import formats
from polyfed.comparison.measures import COSTS
from polyfed.comparison.settings import shared_settings

if TYPE_CHECKING:
    from polyfed.comparison.table import Comparison

GAP = 2  # spaces between columns
# columns that are left out first if the table is too wide, from the most to the least important
OPTIONAL = ("n", "gain personal_final", "mib_up", "seconds", "mib_down", "global_best", "personal_best")


def text_table(comparison: Comparison, *, width: int | None = None, bold: bool = False) -> str:
    """Return plain text in aligned columns. A star marks the best values; `bold` also prints them bold.

    If the table is wider than `width`, accuracies have one digit less, and columns without values and the least
    important columns are left out.
    """
    table = _Grid(comparison)
    shown: Sequence[int] = _in_reading_order(table.ids, range(len(table.ids)))
    left_out: list[str] = []
    if width is not None and table.width(shown) > width:
        table = _Grid(comparison, narrow=True)
        shown = _fitting(table, width)
        left_out = [table.headings[i] for i in range(len(table.ids)) if i not in shown and not table.is_empty(i)]
    lines = table.lines(shown, bold=bold)
    caption_width = width or max(80, max(len(line) for line in table.lines(shown)))
    note = ""
    counts = {row.runs for row in comparison.rows}
    if "n" in left_out and len(counts) == 1:
        note = f" n = {counts.pop()}."
        left_out.remove("n")
    if left_out:
        note += f" Left out to fit {width} columns: {', '.join(left_out)}; --format csv has all columns."
    lines.append(textwrap.fill(f"{comparison.caption} * best mean.{note}", width=caption_width))
    return "\n".join(lines) + "\n"


class _Grid:
    """The cells of a table as text."""

    def __init__(self, comparison: Comparison, *, narrow: bool = False) -> None:
        heading_cells = formats.headings(comparison)
        self.ids = formats.column_ids(comparison)
        self.headings = [formats.printable(cell.text) for cell in heading_cells]
        self.is_name = [cell.name for cell in heading_cells]
        rows = [formats.cells_of(comparison, row, fewer_digits=int(narrow)) for row in comparison.rows]
        self.breaks = _breaks(comparison)
        self.best = [[cell.best for cell in row] for row in rows]
        self.rows = [[formats.printable(cell.text) + ("*" if cell.best else "") for cell in row] for row in rows]
        # in a narrow table, a heading of several words takes two lines, unless the column is wide enough
        content = [max([len(row[i]) for row in self.rows], default=0) for i in range(len(self.ids))]
        self.split = [_split(h, w) if narrow else ("", h) for h, w in zip(self.headings, content, strict=True)]
        self.widths = [max(w, *map(len, parts)) for w, parts in zip(content, self.split, strict=True)]

    def is_empty(self, i: int) -> bool:
        """Return whether a column has no value, such as the global accuracy without a common test set."""
        return not self.is_name[i] and {row[i] for row in self.rows} <= {"-", "baseline"}

    def width(self, shown: Sequence[int]) -> int:
        return sum(self.widths[i] for i in shown) + GAP * (len(shown) - 1)

    def lines(self, shown: Sequence[int], *, bold: bool = False) -> list[str]:
        lines = [self._line([self.split[i][part] for i in shown], shown) for part in (0, 1)]
        lines = [line for line in lines if line]
        lines.append((" " * GAP).join("-" * self.widths[i] for i in shown))
        for number, (row, best) in enumerate(zip(self.rows, self.best, strict=True)):
            if number in self.breaks:
                lines.append("")
            marked = [best[i] and bold for i in shown]
            lines.append(self._line([row[i] for i in shown], shown, marked))
        return lines

    def _line(self, texts: Sequence[str], shown: Sequence[int], bold: Sequence[bool] = ()) -> str:
        cells = []
        for position, (text, i) in enumerate(zip(texts, shown, strict=True)):
            cell = text.ljust(self.widths[i]) if self.is_name[i] else text.rjust(self.widths[i])
            cells.append(f"\x1b[1m{cell}\x1b[0m" if bold and bold[position] else cell)
        return (" " * GAP).join(cells).rstrip()


def _breaks(comparison: Comparison) -> set[int]:
    """Return the rows with another setting than the row before, if each setting has its own baseline."""
    if comparison.baseline is None or "method" not in comparison.keys:
        return set()
    settings = [shared_settings(comparison.keys, tuple(row.group.values())) for row in comparison.rows]
    if len(set(settings)) * 2 > len(settings):
        return set()
    return {number for number in range(1, len(settings)) if settings[number] != settings[number - 1]}


def _split(heading: str, width: int) -> tuple[str, str]:
    """Return the two lines of a heading; the first is empty if the heading fits into one."""
    if len(heading) <= width or " " not in heading:
        return "", heading
    first, _, last = heading.rpartition(" ")
    return first, last


def _fitting(table: _Grid, width: int) -> list[int]:
    """Return the columns to show: the necessary ones, and optional ones in the order of importance if they fit."""
    filled = [i for i in range(len(table.ids)) if not table.is_empty(i)]
    optional = [i for name in OPTIONAL for i in filled if table.ids[i] == name]
    if not any(table.ids[i].startswith("gain") and i not in optional for i in filled):
        optional = [i for i in optional if not table.ids[i].startswith("gain")]  # the only gain is always shown
    shown = [i for i in filled if i not in optional]
    for i in optional:
        if table.width([*shown, i]) <= width:
            shown.append(i)
    return _in_reading_order(table.ids, shown)


def _in_reading_order(ids: Sequence[str], shown: Iterable[int]) -> list[int]:
    """Return columns in their order, with measures of the common test set before those of personal test sets."""
    costs = {measure.key for measure in COSTS}
    return sorted(shown, key=lambda i: (2 if ids[i] in costs else int(ids[i].startswith("personal_")), i))
