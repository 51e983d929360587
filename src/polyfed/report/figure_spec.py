"""A figure before it is drawn: its numbers, what it shows in words, and how matplotlib draws it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from polyfed.report.run_record import Record

Cell = str | int | float | None


@dataclass(frozen=True)
class Options:
    """What a user may choose about a figure."""

    measure: str = "personal"  # which accuracy: personal or global
    against: str = "bytes"  # the cost: bytes or seconds
    by: tuple[str, ...] = ()  # config keys that keep runs apart, besides the method
    round: int | None = None  # which round, for figures that show one; else the last


@dataclass(frozen=True)
class Picture:
    """A figure. `rows` are its numbers: everything that is drawn, so that it can be checked or drawn elsewhere."""

    title: str
    words: str  # for those who cannot see it, and as a caption
    columns: tuple[str, ...]
    rows: Sequence[tuple[Cell, ...]]
    draw: Callable[[Figure], None]
    size: tuple[float, float] = (3.6, 2.7)  # inches


@dataclass(frozen=True)
class Kind:
    """A sort of figure, made from runs. `make` raises InputError where the runs do not hold what it shows."""

    name: str
    about: str
    make: Callable[[Sequence[Record], Options], Picture]
    one_run: bool = False


@dataclass(frozen=True)
class Look:
    """How a line or point is told from others: by colour, and in grey by dashes and marker."""

    color: str
    dashes: str | tuple[int, tuple[float, ...]]
    marker: str


# colours that people with any kind of colour vision can tell apart
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


def look(at: int) -> Look:
    return Look(COLORS[at % len(COLORS)], DASHES[at % len(DASHES)], MARKERS[at % len(MARKERS)])


@dataclass
class Group:
    """Runs that are repetitions of each other, under one label."""

    label: str
    look: Look
    records: list[Record] = field(default_factory=list)


def plain(axes: Axes) -> Axes:
    """Axes without a box: two lines and a faint grid say enough."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True)
    axes.set_axisbelow(True)
    return axes


def legend(figure: Figure, title: str | None = None) -> None:
    """Below the axes, where it hides nothing. A single line needs none."""
    labels = [label for axes in figure.axes for label in axes.get_legend_handles_labels()[1]]
    if len(labels) > 1:
        longest = max(map(len, labels))
        columns = 1 if longest > 26 else 2 if longest > 14 or len(labels) > 3 else len(labels)
        figure.legend(loc="outside lower center", ncols=columns, handlelength=2.6, title=title)


def whole_rounds(axes: Axes) -> None:
    """Ticks at whole numbers: there is no round two and a half."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
