"""Figures over rounds: accuracy, loss, and the loss above its lowest so far."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from polyfed.errors import InputError
from polyfed.report.figure_spec import Cell, Group, Options, Picture, legend, plain, whole_rounds
from polyfed.report.run_groups import Series, grouped, over_rounds, seeds_in
from polyfed.report.run_record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MEASURES = {
    "personal": "accuracy on own held-out data",
    "global": "accuracy on the common test set",
}


def accuracy_curves(records: Sequence[Record], options: Options) -> Picture:
    """Mean accuracy by round, with a band of one deviation over seeds."""

    def read(record: Record) -> Series:
        values = record.accuracy.get(options.measure, [])
        return [None if value is None else 100 * value for value in values]

    what = MEASURES[options.measure]
    return _curves(
        records, options, read, f"{options.measure.capitalize()} accuracy by round", f"{what}, %", "highest"
    )


def loss_curves(records: Sequence[Record], options: Options) -> Picture:
    """The task's own training loss (cross-entropy alone) by round."""
    return _curves(records, options, lambda record: record.loss, "Training loss by round", "cross-entropy", "lowest")


def loss_increase(records: Sequence[Record], options: Options) -> Picture:
    """How far the training loss is above its lowest so far: what a method's other terms cost the task."""
    title = "Training loss above its lowest so far"
    return _curves(records, options, lambda record: above_lowest(record.loss), title, "cross-entropy", "lowest")


def above_lowest(losses: Series) -> list[float | None]:
    """Each loss minus the smallest up to it."""
    known = [value for value in losses if value is not None]
    above = iter([value - low for value, low in zip(known, itertools.accumulate(known, min), strict=True)])
    return [None if value is None else next(above) for value in losses]


def _curves(
    records: Sequence[Record],
    options: Options,
    read: Callable[[Record], Series],
    title: str,
    unit: str,
    better: str,
) -> Picture:
    groups = grouped(records, options.by)
    lines = [(group, over_rounds(group, read)) for group in groups]
    lines = [(group, points) for group, points in lines if points]
    if not lines:
        raise InputError(f"no run has a round with a value for '{title.lower()}' yet")

    def draw(figure: Figure) -> None:
        axes = plain(figure.add_subplot())
        for group, points in lines:
            _line(axes, group, points)
        axes.set_xlabel("round")
        axes.set_ylabel(unit)
        whole_rounds(axes)
        legend(figure)

    rows: list[tuple[Cell, ...]] = [(group.label, *point) for group, points in lines for point in points]
    sign = 1 if better == "highest" else -1
    last = max(lines, key=lambda line: sign * line[1][-1][1])
    ends = "; ".join(f"{g.label} {p[-1][1]:.4g} in round {p[-1][0]}" for g, p in lines[:12])
    words = f"{unit[0].upper()}{unit[1:]}: {seeds_in([g for g, _ in lines])}"
    words += ", band: one sample deviation" if any(p[2] is not None for _, points in lines for p in points) else ""
    words += f". At the end: {ends}{' and others' if len(lines) > 12 else ''}."
    if len(lines) > 1:
        words += f" The {better} is {last[0].label}."
    return Picture(title, words, ("runs", "round", "mean", "deviation", "n"), rows, draw)


def _line(axes: Axes, group: Group, points: list[tuple[int, float, float | None, int]]) -> None:
    rounds = [point[0] for point in points]
    means = [point[1] for point in points]
    style = group.look
    axes.plot(
        rounds,
        means,
        color=style.color,
        linestyle=style.dashes,
        marker=style.marker,
        markevery=max(1, len(points) // 8),
        label=group.label,
    )
    wide = [(n, m, s) for n, m, s, _ in points if s is not None]
    if len(wide) > 1:
        axes.fill_between(
            [n for n, _, _ in wide],
            [m - s for _, m, s in wide],
            [m + s for _, m, s in wide],
            color=style.color,
            alpha=0.18,
            linewidth=0,
        )
