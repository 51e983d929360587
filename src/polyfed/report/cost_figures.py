"""Figures of cost: accuracy against bytes or seconds, and time by phase."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from polyfed.errors import InputError
from polyfed.report.curve_figures import MEASURES
from polyfed.report.drawing import (
    FRONT,
    clipped,
    height_with_legend,
    legend,
    logarithmic_axis,
    per_cent_axis,
    shorten,
    style_axes,
    value_label,
)
from polyfed.report.figure_spec import WIDTH, Cell, FigureSpec, Options
from polyfed.report.run_groups import Group, describe_counts, group_runs, mean_and_std, mean_by_round
from polyfed.report.run_record import PHASES, RunRecord
from polyfed.report.styles import NEUTRAL, style_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MIB = 1 << 20
MAX_PATHS = 6  # with more groups, only the end points are drawn
LOG_RATIO = 30  # costs that differ by more than this factor get a logarithmic axis


def cumulative_cost(record: RunRecord, against: str) -> list[float]:
    """Return the cost up to each round: MiB in both directions, or seconds of training and server work."""
    if against == "bytes":
        both_ways = zip(record.upload_bytes, record.download_bytes, strict=True)
        return list(itertools.accumulate((up + down) / MIB for up, down in both_ways))
    parts = [record.seconds[part] for part in ("train", "server") if part in record.seconds]
    by_round = [sum(values) for values in zip(*parts, strict=True)] if parts else record.seconds.get("total", [])
    return list(itertools.accumulate(by_round))


def pareto(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the indices of the Pareto front: points (cost, value) that no other beats."""
    return [
        index
        for index, (cost, value) in enumerate(points)
        if not any(
            other_cost <= cost and other >= value and (other_cost, other) != (cost, value)
            for other_cost, other in points
        )
    ]


def accuracy_against_cost(records: Sequence[RunRecord], options: Options) -> FigureSpec:
    """Plot final accuracy against cost, with the Pareto front."""
    unit = {"bytes": "MiB, both directions", "seconds": "seconds of training and server work"}[options.against]
    paths: list[tuple[Group, list[tuple[float, float]]]] = []
    ends: list[tuple[float, float, float | None]] = []
    for group in group_runs(records, options.by):
        values = {
            number: 100 * mean
            for number, mean, _, _ in mean_by_round(group, lambda r: r.accuracy.get(options.measure, []))
        }
        by_round = mean_by_round(group, lambda r: cumulative_cost(r, options.against))
        costs = {number: mean for number, mean, _, _ in by_round}
        finals = [
            100 * value for record in group.records if (value := record.final_accuracy(options.measure)) is not None
        ]
        totals = [path[-1] for record in group.records if (path := cumulative_cost(record, options.against))]
        if values and finals and totals:
            paths.append((group, [(costs[number], value) for number, value in values.items()]))
            ends.append((mean_and_std(totals)[0], *mean_and_std(finals)))
    if not paths:
        raise InputError(f"no run has a {options.measure} accuracy yet")
    front = sorted(pareto([(cost, value) for cost, value, _ in ends]), key=lambda index: ends[index][0])

    def draw(figure: Figure) -> None:
        axes = style_axes(figure.add_subplot(), grid="both")
        steps = [(ends[index][0], ends[index][1]) for index in front]
        for index, ((group, path), (cost, value, std)) in enumerate(zip(paths, ends, strict=True)):
            style = group.style
            if len(paths) <= MAX_PATHS:
                axes.plot(*zip(*path, strict=True), color=style.color, linestyle=style.dashes, lw=0.9, alpha=0.5)
            axes.errorbar(
                [cost],
                [value],
                yerr=None if std is None else clipped(value, value - std, value + std),
                color=style.color,
                marker=style.marker,
                markersize=7 if index in front else 5,
                markerfacecolor=style.color if index in front else "none",
                linestyle="none",
                capsize=2,
                elinewidth=0.9,
                label=group.label,
            )
        if len(paths) > 1:
            axes.plot(*zip(*steps, strict=True), drawstyle="steps-post", color=NEUTRAL, lw=1, ls=":", label=FRONT)
        _scale(axes, [cost for cost, _, _ in ends], [cost for _, path in paths for cost, _ in path])
        axes.set_xlabel(unit)
        value_label(axes, f"{MEASURES[options.measure]}, %")
        per_cent_axis(axes)
        legend(figure)

    rows: list[tuple[Cell, ...]] = [
        (group.label, cost, value, std, "yes" if index in front else "no")
        for index, ((group, _), (cost, value, std)) in enumerate(zip(paths, ends, strict=True))
    ]
    caption = describe_counts([group for group, _ in paths])
    caption += ": large marks are the end of training"
    caption += ", thin lines the way there" if len(paths) <= MAX_PATHS else ""
    if any(std is not None for _, _, std in ends):
        caption += ", whiskers one sample standard deviation"
    caption += "."
    if len(paths) > 1:
        caption += " Filled marks are on the Pareto front: no other is both more accurate and cheaper."
    columns = ("runs", unit, "accuracy %", "std", "on the front")
    title = f"{options.measure.capitalize()} accuracy against {options.against}"
    size = (WIDTH, height_with_legend(2.6, [*(group.label for group, _ in paths), FRONT]))
    return FigureSpec(title, caption, columns, rows, draw, size)


def _scale(axes: Axes, ends: Sequence[float], all_costs: Sequence[float]) -> None:
    """Use a logarithmic axis for costs of very different size; with costs of zero, one that is linear around zero."""
    positive = [cost for cost in ends if cost > 0]
    if len(positive) > 1 and max(positive) / min(positive) > LOG_RATIO:
        start = min(cost for cost in all_costs if cost > 0)
        logarithmic_axis(axes, start, max(positive), with_zero=min([*ends, *all_costs]) <= 0)


def phases(records: Sequence[RunRecord], options: Options) -> FigureSpec:
    """Plot the mean seconds per round by phase."""
    rows: list[tuple[Cell, ...]] = []
    shown: list[tuple[Group, list[float]]] = []
    for group in group_runs(records, options.by):
        timed = [record for record in group.records if all(record.seconds.get(part) for part in PHASES)]
        if timed:
            means = [mean_and_std([mean_and_std(r.seconds[part])[0] for r in timed])[0] for part in PHASES]
            shown.append((group, means))
            rows.append((group.label, *means))
    if not shown:
        raise InputError("no run has recorded the seconds of a round by phase yet")
    names = ("client steps", "evaluation", "server")

    def draw(figure: Figure) -> None:
        axes = style_axes(figure.add_subplot(), grid="x")
        base = [0.0] * len(shown)
        places = range(len(shown))
        for index, name in enumerate(names):
            widths = [means[index] for _, means in shown]
            style = style_for(index)
            axes.barh(
                places,
                widths,
                left=base,
                height=0.62,
                color=style.color,
                hatch=style.hatch,
                edgecolor="white",
                linewidth=0,
                label=name,
            )
            base = [start + width for start, width in zip(base, widths, strict=True)]
        axes.set_yticks(list(places), [shorten(group.label) for group, _ in shown])
        axes.invert_yaxis()
        axes.set_xlabel("mean seconds per round")
        legend(figure)

    caption = "Waiting for client steps, evaluation, and work of the server. Evaluation may overlap with the server."
    return FigureSpec("Time by phase", caption, ("runs", *names), rows, draw, (WIDTH, 1.15 + 0.26 * len(shown)))
