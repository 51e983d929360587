"""Comparison of runs: mean and standard deviation over seeds, best values, differences to a baseline.

`runs` loads finished runs, `measures` reads their numbers, `gain` compares them with a baseline, `table` computes the
comparison, `formats` writes it as text. Nothing here needs torch.
"""

from polyfed.comparison.formats import FORMATS
from polyfed.comparison.gain import Difference
from polyfed.comparison.runs import Run, load_runs
from polyfed.comparison.table import AUTO, Comparison, Row, Spread, compare, compare_runs

__all__ = [
    "AUTO",
    "Comparison",
    "Difference",
    "FORMATS",
    "Row",
    "Run",
    "Spread",
    "compare",
    "compare_runs",
    "load_runs",
]
