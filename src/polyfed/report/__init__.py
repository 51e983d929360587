"""HTML reports and figures of runs.

`page` writes the report, `figure_kinds` lists the figures, `run_record` reads a run folder. Nothing here needs torch,
the data or the models: run folders are the only input.
"""

from polyfed.report.figure_kinds import KINDS, figure
from polyfed.report.figure_spec import Options

__all__ = ["KINDS", "Options", "figure"]
