"""Runs side by side: grouped, averaged over seeds, the best marked. Reads results and run folders; needs no torch."""

from polyfed.comparison.formats import FORMATS
from polyfed.comparison.runs import Run, gather
from polyfed.comparison.table import Comparison, Difference, Row, Spread, compare, compare_runs

__all__ = ["Comparison", "Difference", "FORMATS", "Row", "Run", "Spread", "compare", "compare_runs", "gather"]
