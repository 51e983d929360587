"""Figures over rounds: accuracy, loss, and the increase of the loss over its minimum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from polyfed.comparison.losses import loss_increase
from polyfed.errors import InputError
from polyfed.report.drawing import (
    PER_CENT,
    height_with_legend,
    integer_ticks,
    legend,
    per_cent_axis,
    style_axes,
    value_label,
)
from polyfed.report.figure_spec import WIDTH, Cell, FigureSpec, Options
from polyfed.report.run_groups import Group, Series, describe_counts, group_runs, mean_by_round
from polyfed.report.run_record import RunRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AT_LEAST_0 = (0.0, float("inf"))
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
    return _curves(records, options, read, title, f"{MEASURES[options.measure]}, %", PER_CENT)


def loss_curves(records: Sequence[RunRecord], options: Options) -> FigureSpec:
    """Plot the training loss of the task (cross-entropy alone) by round."""
    return _curves(
        records, options, lambda record: record.loss, "Training loss by round", "cross-entropy", AT_LEAST_0
    )


def loss_increase_curves(records: Sequence[RunRecord], options: Options) -> FigureSpec:
    """Plot how far the training loss is above its minimum so far: what a method's other terms cost the task."""
    title = "Training loss above its minimum so far"
    return _curves(records, options, lambda record: loss_increase(record.loss), title, "cross-entropy", AT_LEAST_0)


def _curves(
    records: Sequence[RunRecord],
    options: Options,
    read: Callable[[RunRecord], Series],
    title: str,
    unit: str,
    bounds: tuple[float, float],
) -> FigureSpec:
    groups = group_runs(records, options.by)
    lines = [(group, mean_by_round(group, read)) for group in groups]
    lines = [(group, points) for group, points in lines if points]
    if not lines:
        raise InputError(f"no run has a round with a value for '{title.lower()}' yet")

    def draw(figure: Figure) -> None:
        axes = style_axes(figure.add_subplot())
        for group, points in lines:
            _line(axes, group, points, bounds)
        axes.set_xlabel("round")
        value_label(axes, unit)
        integer_ticks(axes)
        if bounds == PER_CENT:
            per_cent_axis(axes)
        legend(figure)

    rows: list[tuple[Cell, ...]] = [(group.label, *point) for group, points in lines for point in points]
    caption = describe_counts([group for group, _ in lines])
    if any(std is not None for _, points in lines for _, _, std, _ in points):
        caption += "; band: one sample standard deviation"
    size = (WIDTH, height_with_legend(2.6, [group.label for group, _ in lines]))
    return FigureSpec(title, f"{caption}.", ("runs", "round", "mean", "std", "n"), rows, draw, size)


def _line(
    axes: Axes, group: Group, points: list[tuple[int, float, float | None, int]], bounds: tuple[float, float]
) -> None:
    style = group.style
    axes.plot(
        [point[0] for point in points],
        [point[1] for point in points],
        color=style.color,
        linestyle=style.dashes,
        marker=style.marker,
        markevery=max(1, len(points) // 8),
        label=group.label,
    )
    band = [(number, mean, std) for number, mean, std, _ in points if std is not None]
    if len(band) > 1:
        axes.fill_between(
            [number for number, _, _ in band],
            [max(bounds[0], mean - std) for _, mean, std in band],
            [min(bounds[1], mean + std) for _, mean, std in band],
            color=style.color,
            alpha=0.13,
            linewidth=0,
        )
