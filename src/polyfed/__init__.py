"""polyfed: federated learning between clients with different data and different models."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyfed import data, errors, models
    from polyfed.advice import advise
    from polyfed.api import load, resume, run
    from polyfed.comparison import compare
    from polyfed.core import register
    from polyfed.report.python_functions import figure, report
    from polyfed.sweeps import sweep
    from polyfed.trained.load import load_client

__version__ = "0.1.0"
__all__ = [
    "advise",
    "compare",
    "data",
    "errors",
    "figure",
    "load",
    "load_client",
    "models",
    "register",
    "report",
    "resume",
    "run",
    "sweep",
]

# public names and their modules, imported on first use so that `import polyfed` is fast
_LAZY = {
    "advise": "polyfed.advice",
    "compare": "polyfed.comparison",
    "figure": "polyfed.report.python_functions",
    "load": "polyfed.api",
    "load_client": "polyfed.trained.load",
    "register": "polyfed.core",
    "resume": "polyfed.api",
    "run": "polyfed.api",
    "sweep": "polyfed.sweeps",
}
_MODULES = ("data", "errors", "models", "report")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"polyfed.{name}")
    if name in _LAZY:
        value = getattr(importlib.import_module(_LAZY[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'polyfed' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
