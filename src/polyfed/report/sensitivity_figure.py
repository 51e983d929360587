"""Figure of accuracy against the values of one setting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from polyfed.comparison.table import sort_key
from polyfed.errors import InputError
from polyfed.report.curve_figures import MEASURES
from polyfed.report.drawing import (
    PER_CENT,
    height_with_legend,
    label_positions,
    legend,
    per_cent_axis,
    style_axes,
    value_label,
)
from polyfed.report.figure_spec import WIDTH, Cell, FigureSpec, Options
from polyfed.report.run_groups import Group, describe_counts, group_runs, mean_and_std
from polyfed.report.run_record import RunRecord
from polyfed.report.styles import style_of_method

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def sensitivity(records: Sequence[RunRecord], options: Options) -> FigureSpec:
    """Plot final accuracy against the values of one setting, with a line per method and per other settings."""
    if len(options.by) != 1:
        raise InputError("a figure 'sensitivity' shows one setting: name it with --by, e.g. --by train.lr")
    key = options.by[0]
    groups = group_runs(records, options.by)
    values = sorted({group.values[key] for group in groups}, key=sort_key)
    lines: dict[str, list[Group]] = {}  # by all that defines a group except the value of the key
    for group in groups:
        others = [f"{name.rpartition('.')[2]} {value}" for name, value in group.values.items() if name != key]
        lines.setdefault(", ".join([group.method, *others]), []).append(group)
    rows: list[tuple[Cell, ...]] = []
    for label, members in lines.items():
        for group in members:
            finals = [100 * v for r in group.records if (v := r.final_accuracy(options.measure)) is not None]
            if finals:
                rows.append((label, group.values[key], *mean_and_std(finals), len(finals)))
    if not rows:
        raise InputError(f"no run has a {options.measure} accuracy yet")

    def draw(figure: Figure) -> None:
        axes = style_axes(figure.add_subplot())
        variants: dict[str, int] = {}
        for label, members in lines.items():
            method = members[0].records[0].method
            style = style_of_method(method, variants.setdefault(method, 0))
            variants[method] += 1
            points = [row for row in rows if row[0] == label]
            means = [float(row[2] or 0) for row in points]
            stds = [float(row[3] or 0) for row in points]
            axes.errorbar(
                [values.index(str(row[1])) for row in points],
                means,
                yerr=[
                    [min(std, mean - PER_CENT[0]) for mean, std in zip(means, stds, strict=True)],
                    [min(std, PER_CENT[1] - mean) for mean, std in zip(means, stds, strict=True)],
                ],
                color=style.color,
                linestyle=style.dashes,
                marker=style.marker,
                capsize=2,
                elinewidth=0.9,
                label=label,
            )
        axes.set_xlim(-0.4, len(values) - 0.6)
        label_positions(axes, values, axis="x", room=3.0)
        axes.set_xlabel(key)
        value_label(axes, f"{MEASURES[options.measure]}, %")
        per_cent_axis(axes)
        legend(figure)

    caption = f"{describe_counts(groups)} after the last round; whiskers: one sample standard deviation."
    columns = ("runs", key, "accuracy %", "std", "n")
    size = (WIDTH, height_with_legend(2.6, list(lines)))
    return FigureSpec(f"Accuracy by {key}", caption, columns, rows, draw, size)
