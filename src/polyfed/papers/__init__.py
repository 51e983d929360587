"""Experiments of papers: their tables at CPU scale and at published scale, and the claims they make.

`paper_file` describes the data file of a paper, `loading` reads it, `grid` plans the runs of its tables, `results`
computes tables and claims from finished runs, `text` and `page` write them. Nothing here needs torch.
"""

from polyfed.papers.claims import ClaimResult, evaluate_claim, evaluate_claims
from polyfed.papers.grid import GridRun, cell_config, find_runs, plan_grid
from polyfed.papers.loading import load_paper, paper_names, write_tuned
from polyfed.papers.paper_file import SCALES, Claim, Paper, PaperMeasure, PaperTable, Scale
from polyfed.papers.results import CellRuns, TableResult, table_result

__all__ = [
    "SCALES",
    "CellRuns",
    "Claim",
    "ClaimResult",
    "GridRun",
    "Paper",
    "PaperMeasure",
    "PaperTable",
    "Scale",
    "TableResult",
    "cell_config",
    "evaluate_claim",
    "evaluate_claims",
    "find_runs",
    "load_paper",
    "paper_names",
    "plan_grid",
    "table_result",
    "write_tuned",
]
