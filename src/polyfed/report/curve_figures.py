"""Figures over rounds: accuracy, loss, and the increase of the loss over its minimum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from polyfed.comparison.losses import loss_increase
from polyfed.errors import InputError
from polyfed.report.figure_spec import Cell, FigureSpec, Group, Options, integer_ticks, legend, style_axes
from polyfed.report.run_groups import Series, describe_counts, group_runs, mean_by_round
from polyfed.report.run_record import RunRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MEASURES = {
    "personal": "accuracy on own held-out data",
    "global": "accuracy on the common test set",
}


def accuracy_curves(records: Sequence[RunRecord], options: Options) -> FigureSpec:
    """Plot mean accuracy by round, with a band of one standard deviation over seeds."""

    def read(record: RunRecord) -> Series:
        values = record.accuracy.get(options.measure, [])
        return [None if value is None else 100 * value for value in values]

    title = f"{options.measure.capitalize()} accuracy by round"
    return _curves(records, options, read, title, f"{MEASURES[options.measure]}, %", "highest")


def loss_curves(records: Sequence[RunRecord], options: Options) -> FigureSpec:
    """Plot the training loss of the task (cross-entropy alone) by round."""
    return _curves(records, options, lambda record: record.loss, "Training loss by round", "cross-entropy", "lowest")


def loss_increase_curves(records: Sequence[RunRecord], options: Options) -> FigureSpec:
    """Plot how far the training loss is above its minimum so far: what a method's other terms cost the task."""
    title = "Training loss above its minimum so far"
    return _curves(records, options, lambda record: loss_increase(record.loss), title, "cross-entropy", "lowest")


def _curves(
    records: Sequence[RunRecord],
    options: Options,
    read: Callable[[RunRecord], Series],
    title: str,
    unit: str,
    better: str,
) -> FigureSpec:
    groups = group_runs(records, options.by)
    lines = [(group, mean_by_round(group, read)) for group in groups]
    lines = [(group, points) for group, points in lines if points]
    if not lines:
        raise InputError(f"no run has a round with a value for '{title.lower()}' yet")

    def draw(figure: Figure) -> None:
        axes = style_axes(figure.add_subplot())
        for group, points in lines:
            _line(axes, group, points)
        axes.set_xlabel("round")
        axes.set_ylabel(unit)
        integer_ticks(axes)
        legend(figure)

    rows: list[tuple[Cell, ...]] = [(group.label, *point) for group, points in lines for point in points]
    sign = 1 if better == "highest" else -1
    best = max(lines, key=lambda line: sign * line[1][-1][1])
    finals = "; ".join(f"{g.label} {p[-1][1]:.4g} in round {p[-1][0]}" for g, p in lines[:12])
    caption = f"{unit[0].upper()}{unit[1:]}: {describe_counts([g for g, _ in lines])}"
    if any(p[2] is not None for _, points in lines for p in points):
        caption += ", band: one sample standard deviation"
    caption += f". Last values: {finals}{' and others' if len(lines) > 12 else ''}."
    if len(lines) > 1:
        caption += f" The {better} is {best[0].label}."
    return FigureSpec(title, caption, ("runs", "round", "mean", "std", "n"), rows, draw)


def _line(axes: Axes, group: Group, points: list[tuple[int, float, float | None, int]]) -> None:
    rounds = [point[0] for point in points]
    means = [point[1] for point in points]
    style = group.style
    axes.plot(
        rounds,
        means,
        color=style.color,
        linestyle=style.dashes,
        marker=style.marker,
        markevery=max(1, len(points) // 8),
        label=group.label,
    )
    band = [(n, m, s) for n, m, s, _ in points if s is not None]
    if len(band) > 1:
        axes.fill_between(
            [n for n, _, _ in band],
            [m - s for _, m, s in band],
            [m + s for _, m, s in band],
            color=style.color,
            alpha=0.18,
            linewidth=0,
        )
