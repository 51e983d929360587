"""A figure before it is drawn: its data, its caption, and the function that draws it with matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from polyfed.report.run_record import RunRecord

Cell = str | int | float | None
WIDTH = 3.6  # inches: a column of a paper


@dataclass(frozen=True)
class Options:
    """Options of a figure that a user can set."""

    measure: str = "personal"  # which accuracy: personal or global
    against: str = "bytes"  # the cost: bytes or seconds
    by: tuple[str, ...] = ()  # config keys that group runs, in addition to the method
    round: int | None = None  # which round, for figures that show one; default: the last
    baseline: str = "local"  # method that gains are differences to


@dataclass(frozen=True)
class FigureSpec:
    """A figure. `rows` holds everything that is drawn, so that it can be checked or drawn with another tool."""

    title: str
    caption: str  # what is shown and how to read it; also the text alternative for screen readers
    columns: tuple[str, ...]
    rows: Sequence[tuple[Cell, ...]]
    draw: Callable[[Figure], None]
    size: tuple[float, float] = (WIDTH, 2.6)  # inches


@dataclass(frozen=True)
class FigureKind:
    """A kind of figure. `make` raises InputError if the runs do not hold the data that it shows."""

    name: str
    description: str
    make: Callable[[Sequence[RunRecord], Options], FigureSpec]
    one_run: bool = False
