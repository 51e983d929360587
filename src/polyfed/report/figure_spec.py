"""A figure before it is drawn: its data, its caption, and the function that draws it with matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from polyfed.report.run_record import RunRecord

Cell = str | int | float | None


@dataclass(frozen=True)
class Options:
    """Options of a figure that a user can set."""

    measure: str = "personal"  # which accuracy: personal or global
    against: str = "bytes"  # the cost: bytes or seconds
    by: tuple[str, ...] = ()  # config keys that group runs, in addition to the method
    round: int | None = None  # which round, for figures that show one; default: the last


@dataclass(frozen=True)
class FigureSpec:
    """A figure. `rows` holds everything that is drawn, so that it can be checked or drawn with another tool."""

    title: str
    caption: str  # also the text alternative for screen readers
    columns: tuple[str, ...]
    rows: Sequence[tuple[Cell, ...]]
    draw: Callable[[Figure], None]
    size: tuple[float, float] = (3.6, 2.7)  # inches


@dataclass(frozen=True)
class FigureKind:
    """A kind of figure. `make` raises InputError if the runs do not hold the data that it shows."""

    name: str
    description: str
    make: Callable[[Sequence[RunRecord], Options], FigureSpec]
    one_run: bool = False


@dataclass(frozen=True)
class Style:
    """How a line or point is drawn: by colour, and for grey print by dashes and marker."""

    color: str
    dashes: str | tuple[int, tuple[float, ...]]
    marker: str


# distinguishable with every kind of colour vision
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#8c6bb1", "#999933")
DARK_COLORS = ("#3fa3e0", "#f0803c", "#2fc79b", "#e29bc4", "#8fd0f5", "#f0bb45", "#b39ad6", "#bdbd5c")  # on black
DASHES: tuple[str | tuple[int, tuple[float, ...]], ...] = (
    "-",
    (0, (5, 2)),
    (0, (1.2, 1.6)),
    (0, (6, 2, 1.2, 2)),
    (0, (3, 1, 1, 1, 1, 1)),
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p", "h", "*", "<", ">")
HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\", "||||", "oooo", "----")


def style_for(index: int) -> Style:
    """Return the style of the n-th series of a figure."""
    return Style(COLORS[index % len(COLORS)], DASHES[index % len(DASHES)], MARKERS[index % len(MARKERS)])


@dataclass
class Group:
    """Runs that differ in their seed only, under one label."""

    label: str
    style: Style
    records: list[RunRecord] = field(default_factory=list)


def style_axes(axes: Axes) -> Axes:
    """Remove the upper and right spine and add a grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True)
    axes.set_axisbelow(True)
    return axes


def legend(figure: Figure, title: str | None = None) -> None:
    """Add a legend below the axes if there is more than one label."""
    labels = [label for axes in figure.axes for label in axes.get_legend_handles_labels()[1]]
    if len(labels) > 1:
        longest = max(map(len, labels))
        columns = 1 if longest > 26 else 2 if longest > 14 or len(labels) > 3 else len(labels)
        figure.legend(loc="outside lower center", ncols=columns, handlelength=2.6, title=title)


def integer_ticks(axes: Axes) -> None:
    """Place the ticks of the x axis at integers."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
