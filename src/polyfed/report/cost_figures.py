"""Figures of cost: accuracy against bytes or seconds, time by phase, and accuracy against a setting."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from polyfed.comparison.table import sort_key
from polyfed.errors import InputError
from polyfed.report.curve_figures import MEASURES
from polyfed.report.figure_spec import (
    COLORS,
    HATCHES,
    Cell,
    FigureSpec,
    Group,
    Options,
    legend,
    style_axes,
    style_for,
)
from polyfed.report.run_groups import group_runs, mean_and_std, mean_by_round
from polyfed.report.run_record import PHASES, RunRecord

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
        axes = style_axes(figure.add_subplot())
        steps = [(ends[index][0], ends[index][1]) for index in front]
        if len(paths) > 1:
            axes.plot(*zip(*steps, strict=True), drawstyle="steps-post", color="#808080", lw=1, ls=":", label="front")
        for index, ((group, path), (cost, value, std)) in enumerate(zip(paths, ends, strict=True)):
            style = group.style
            if len(paths) <= MAX_PATHS:
                axes.plot(*zip(*path, strict=True), color=style.color, linestyle=style.dashes, lw=0.9, alpha=0.6)
            axes.errorbar(
                [cost],
                [value],
                yerr=None if std is None else [std],
                color=style.color,
                marker=style.marker,
                markersize=7 if index in front else 5,
                markerfacecolor=style.color if index in front else "none",
                linestyle="none",
                capsize=2,
                elinewidth=0.9,
                label=group.label,
            )
        _scale(axes, [cost for cost, _, _ in ends], [cost for _, path in paths for cost, _ in path])
        axes.set_xlabel(unit)
        axes.set_ylabel(f"{MEASURES[options.measure]}, %")
        legend(figure)

    rows: list[tuple[Cell, ...]] = [
        (group.label, cost, value, std, "yes" if index in front else "no")
        for index, ((group, _), (cost, value, std)) in enumerate(zip(paths, ends, strict=True))
    ]
    listed = "; ".join(
        f"{g.label} {v:.2f} % for {c:.4g}" for (g, _), (c, v, _) in list(zip(paths, ends, strict=True))[:12]
    )
    caption = f"Final {MEASURES[options.measure]} against {unit}: {listed}."
    if len(paths) > 1:
        caption += f" Pareto front (filled marks, dotted line): {', '.join(paths[i][0].label for i in front)}."
    columns = ("runs", unit, "accuracy %", "std", "on the front")
    return FigureSpec(
        f"{options.measure.capitalize()} accuracy against {options.against}", caption, columns, rows, draw
    )


def _scale(axes: Axes, ends: Sequence[float], all_costs: Sequence[float]) -> None:
    """Use a logarithmic axis for costs of very different size; with costs of zero, one that is linear around zero."""
    positive = [cost for cost in ends if cost > 0]
    if len(positive) > 1 and max(positive) / min(positive) > LOG_RATIO:
        if min(all_costs) > 0:
            axes.set_xscale("log")
        else:
            axes.set_xscale("symlog", linthresh=min(positive))
            axes.set_xlim(left=-0.1 * min(positive))


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
        axes = style_axes(figure.add_subplot())
        axes.grid(False, axis="y")
        base = [0.0] * len(shown)
        places = range(len(shown))
        for index, name in enumerate(names):
            widths = [means[index] for _, means in shown]
            axes.barh(
                places,
                widths,
                left=base,
                height=0.62,
                color=COLORS[index],
                alpha=0.85,
                hatch=HATCHES[index],
                edgecolor="white",
                linewidth=0.4,
                label=name,
            )
            base = [start + width for start, width in zip(base, widths, strict=True)]
        axes.set_yticks(list(places), [group.label for group, _ in shown])
        axes.invert_yaxis()
        axes.set_xlabel("mean seconds per round")
        legend(figure)

    slowest = max(shown, key=lambda one: sum(one[1]))
    caption = (
        "Mean seconds per round: waiting for client steps, evaluation, and work of the server. Evaluation may "
        "overlap with the work of the server. "
        + "; ".join(f"{g.label}: {a:.3g}, {b:.3g} and {c:.3g}" for g, (a, b, c) in shown[:12])
        + (f". The longest rounds are those of {slowest[0].label}." if len(shown) > 1 else ".")
    )
    return FigureSpec("Time by phase", caption, ("runs", *names), rows, draw, (3.6, 1.2 + 0.28 * len(shown)))


def sensitivity(records: Sequence[RunRecord], options: Options) -> FigureSpec:
    """Plot final accuracy against the values of one setting, with a line per method."""
    if len(options.by) != 1:
        raise InputError("a figure 'sensitivity' shows one setting: name it with --by, e.g. --by train.lr")
    key = options.by[0]
    group_runs(records, options.by)  # raises InputError if there is no such setting
    values = sorted({record.setting(key) for record in records}, key=sort_key)
    methods = sorted({record.method for record in records})
    rows: list[tuple[Cell, ...]] = []
    for method, value in itertools.product(methods, values):
        finals = [
            100 * final
            for record in records
            if record.method == method and record.setting(key) == value
            if (final := record.final_accuracy(options.measure)) is not None
        ]
        if finals:
            rows.append((method, value, *mean_and_std(finals), len(finals)))
    if not rows:
        raise InputError(f"no run has a {options.measure} accuracy yet")

    def draw(figure: Figure) -> None:
        axes = style_axes(figure.add_subplot())
        for index, method in enumerate(methods):
            points = [row for row in rows if row[0] == method]
            style = style_for(index)
            axes.errorbar(
                [values.index(str(row[1])) for row in points],
                [float(row[2] or 0) for row in points],
                yerr=[float(row[3] or 0) for row in points],
                color=style.color,
                linestyle=style.dashes,
                marker=style.marker,
                capsize=2,
                elinewidth=0.9,
                label=method,
            )
        axes.set_xticks(range(len(values)), values)
        axes.set_xlabel(key)
        axes.set_ylabel(f"{MEASURES[options.measure]}, %")
        legend(figure)

    caption = f"Final {MEASURES[options.measure]} for each value of {key}, mean and standard deviation over seeds: "
    caption += "; ".join(f"{row[0]} at {row[1]}: {row[2]:.2f} %" for row in rows[:12]) + "."
    columns = ("method", key, "accuracy %", "std", "n")
    return FigureSpec(f"Accuracy by {key}", caption, columns, rows, draw)
