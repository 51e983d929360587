"""HTML reports and figures of runs.

`page` writes the report, `figure_kinds` lists the figures, `run_record` reads a run folder. Nothing here needs torch,
the data or the models: run folders are the only input.
"""

import sys
from types import ModuleType
from typing import Any

from polyfed.report.figure_kinds import KINDS, figure
from polyfed.report.figure_spec import Options

__all__ = ["KINDS", "Options", "figure"]


class _CallableModule(ModuleType):
    """This package, which is also the function `polyfed.report(runs, out)`."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        from polyfed.report.python_functions import report

        return report(*arguments, **options)


sys.modules[__name__].__class__ = _CallableModule
