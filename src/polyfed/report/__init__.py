"""What people look at, drawn from run folders alone: a page over runs, and figures. Needs no torch."""

from polyfed.report.kinds import KINDS, figure
from polyfed.report.picture import Options

__all__ = ["KINDS", "Options", "figure"]
