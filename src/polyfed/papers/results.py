"""Tables of a paper from finished runs: mean and standard deviation over seeds, gains over a baseline."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from polyfed.comparison import Difference, Run
from polyfed.comparison.gain import paired_difference
from polyfed.papers.grid import Cell
from polyfed.papers.measures import read_value
from polyfed.papers.paper_file import Paper, PaperMeasure, Scale

CellRuns = Mapping[Cell, Sequence[Run]]


@dataclass(frozen=True)
class CellResult:
    """One cell of a table: values by seed, the published number, and the gain over the baseline's row."""

    values: Mapping[int, float]
    published: float | None
    gain: Difference | None  # None for the baseline itself, and without a common seed
    missing: tuple[int, ...]  # seeds without a finished run

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.values.values()) if self.values else None

    @property
    def std(self) -> float | None:
        return statistics.stdev(self.values.values()) if len(self.values) > 1 else None


@dataclass(frozen=True)
class TableResult:
    """A table of a paper at a scale. Cells that the table does not have are missing in `cells`."""

    name: str
    settings: tuple[str, ...]
    rows: tuple[str, ...]
    cells: Mapping[Cell, CellResult]


def table_result(paper: Paper, scale: Scale, name: str, runs: CellRuns, seeds: Sequence[int]) -> TableResult:
    """Return a table with the runs that have finished."""
    table = paper.tables[name]
    settings = paper.settings_of(name, scale)
    cells: dict[Cell, CellResult] = {}
    for setting in settings:
        rows = paper.rows_of(name, setting, scale)
        base = values_of(paper, table.measure, (setting, table.baseline), runs) if table.baseline in rows else {}
        for row in rows:
            values = values_of(paper, table.measure, (setting, row), runs)
            cells[setting, row] = CellResult(
                values,
                table.published.get(setting, {}).get(row),
                None if row == table.baseline else paired_difference(values, base),
                tuple(seed for seed in seeds if seed not in values),
            )
    shown = [row for row in table.rows if any((setting, row) in cells for setting in settings)]
    return TableResult(name, tuple(settings), tuple(shown), cells)


def values_of(paper: Paper, measure: PaperMeasure, cell: Cell, runs: CellRuns) -> dict[int, float]:
    """Return the values of a cell by seed."""
    at = paper.rows[cell[1]].moment or measure.moment
    return {
        run.seed: value for run in runs.get(cell, ()) if (value := read_value(measure, at, run.result)) is not None
    }
