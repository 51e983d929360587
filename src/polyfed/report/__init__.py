"""What people look at, drawn from run folders alone: a page over runs, and figures. Needs no torch."""

from polyfed.report.figure_kinds import KINDS, figure
from polyfed.report.figure_spec import Options

__all__ = ["KINDS", "Options", "figure"]
