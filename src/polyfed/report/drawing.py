"""Parts that several figures share: axes, labels, legends, and intervals that stay inside the axis."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from polyfed.report.figure_spec import WIDTH

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PER_CENT = (0.0, 100.0)
LETTER = 4.75  # mean width of a letter in a legend or at a tick, in points
WIDEST_LABEL = 34  # letters of a name at an axis
FRONT = "Pareto front"  # the last label of a legend
SMALL = 6.5  # font size of dense labels


def style_axes(axes: Axes, *, grid: str = "y") -> Axes:
    """Show the lower spine only and add grid lines across one axis ('x' or 'y') or both."""
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.grid(True, axis="both" if grid == "both" else "x" if grid == "x" else "y")
    axes.tick_params(length=0, pad=4)
    axes.set_axisbelow(True)
    return axes


def value_label(axes: Axes, text: str) -> None:
    """Write the unit of the y axis above it, where long text has room."""
    axes.set_title(text, loc="left", fontsize=7.5, pad=6)


def integer_ticks(axes: Axes) -> None:
    """Place the ticks of the x axis at integers."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, steps=[1, 2, 5, 10]))


def legend(figure: Figure, title: str | None = None, **options: Any) -> None:
    """Add a legend below the axes if there is more than one label, in as many columns as fit."""
    pairs = [pair for axes in figure.axes for pair in zip(*axes.get_legend_handles_labels(), strict=True)]
    if len(pairs) < 2:
        return
    pairs.sort(key=lambda pair: pair[1] == FRONT)
    labels, columns = _legend_layout([label for _, label in pairs], figure.get_figwidth())
    figure.legend(
        [handle for handle, _ in pairs],
        labels,
        loc="outside lower center",
        ncols=columns,
        handlelength=2.2,
        columnspacing=1.2,
        title=title,
        **options,
    )


def _legend_layout(labels: Sequence[str], width: float) -> tuple[list[str], int]:
    """Return the labels in lines that fit into a width in inches, and the number of columns."""
    room = int((72 * width - 40) / LETTER)
    wrapped = ["\n".join(textwrap.wrap(label, max(8, room))) or label for label in labels]
    longest = max(len(line) for label in wrapped for line in label.split("\n"))
    return wrapped, min(len(labels), max(1, int((72 * width - 8) / (longest * LETTER + 36))))


def height_with_legend(height: float, labels: Sequence[str]) -> float:
    """Return the height of a figure whose legend may need more than two lines."""
    if len(labels) < 2:
        return height
    wrapped, columns = _legend_layout(labels, WIDTH)
    lines = math.ceil(sum(label.count("\n") + 1 for label in wrapped) / columns)
    return height + 0.15 * max(0, lines - 2)


def shorten(name: str, limit: int = WIDEST_LABEL) -> str:
    """Shorten a long name in its middle, since long names often differ at their ends."""
    if len(name) <= limit:
        return name
    head = limit // 2
    return f"{name[:head]}…{name[head + 1 - limit :]}"


def distinct_parts(names: Sequence[str]) -> list[str]:
    """Return dotted names without the parts that all of them have in common at the start and at the end."""
    parts = [name.split(".") for name in names]
    if len(set(names)) < 2:
        return list(names)
    start = next(k for k, column in enumerate(zip_longest(*parts)) if len(set(column)) > 1)
    if start and all(rest[start:] and rest[start].isdecimal() for rest in parts):
        start -= 1  # a number says nothing without the word before it
    reverse = [rest[start:][::-1] for rest in parts]
    end = next((k for k, column in enumerate(zip_longest(*reverse)) if len(set(column)) > 1), 0)
    shown = [".".join(rest[start : len(rest) - end]) for rest in parts]
    return shown if all(shown) else list(names)


def label_positions(axes: Axes, names: Sequence[str], *, axis: str, room: float) -> None:
    """Write names at positions 0, 1, ... of an axis whose length is `room` inches.

    Names that do not fit are written smaller, then upright, and then only some of them.
    """
    if not names:
        return
    points = 72 * room / len(names)
    longest = max(map(len, names))
    size, upright, needed = 7.5, False, 9.5
    if axis == "x":
        needed = longest * LETTER + 3
        if needed > points:
            size, needed = SMALL, longest * LETTER * SMALL / 7.5 + 2
        if needed > points and longest > 2:
            upright, needed = True, 8.5
    elif needed > points:
        size, needed = SMALL, 8.5
    every = max(1, math.ceil(needed / points))
    shown = [shorten(name, 22 if upright else WIDEST_LABEL) for name in names[::every]]
    positions = range(0, len(names), every)
    if axis == "x":
        axes.set_xticks(positions, shown, rotation=90 if upright else 0, fontsize=size)
    else:
        axes.set_yticks(positions, shown, fontsize=size)


def clipped(
    mean: float, low: float | None, high: float | None, bounds: tuple[float, float] = PER_CENT
) -> list[list[float]] | None:
    """Return an interval as the error bars of matplotlib, cut at the bounds of the axis; None without an interval."""
    if low is None or high is None:
        return None
    return [[max(0.0, mean - max(low, bounds[0]))], [max(0.0, min(high, bounds[1]) - mean)]]


def per_cent_axis(axes: Axes, *, which: str = "y") -> None:
    """Keep an axis of per cent within 0 and 100, with a little room for markers."""
    low, high = axes.get_ylim() if which == "y" else axes.get_xlim()
    margin = 0.02 * (min(high, 100) - max(low, 0))
    limits = (max(low, -margin), min(high, 100 + margin))
    if limits[0] < limits[1]:
        (axes.set_ylim if which == "y" else axes.set_xlim)(*limits)


def logarithmic_axis(axes: Axes, low: float, high: float, *, with_zero: bool) -> None:
    """Make the x axis logarithmic with plain numbers at its ticks; with zero, it is linear around zero."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    step = max(1, math.ceil((last - first) / 5))
    ticks = [10.0**exponent for exponent in range(first, last + 1, step)]
    if with_zero:
        axes.set_xscale("symlog", linthresh=10.0**first)
        axes.set_xlim(left=-0.15 * 10.0**first)
        ticks = [0.0, *(tick for tick in ticks if tick >= 10.0**first)]
    else:
        axes.set_xscale("log")
    right = axes.get_xlim()[1]
    axes.xaxis.set_major_locator(FixedLocator([tick for tick in ticks if tick <= max(right, high)]))
    axes.xaxis.set_major_formatter(FuncFormatter(plain_number))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())


def plain_number(value: float, _: Any = None) -> str:
    """Format a power of ten: 0.01, 100, 10k, 1M. Figures parse no formulas, as names may contain a dollar sign."""
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if suffix == 'k' else size):g}{suffix}"
    return f"{value:g}"


def signed(value: float, digits: int = 0) -> str:
    """Format a difference with its sign; zero has none."""
    text = f"{value:+.{digits}f}"
    return text.replace("-", "\N{MINUS SIGN}") if float(text) else text[1:]
