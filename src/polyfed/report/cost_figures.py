"""Figures of cost: accuracy against bytes or seconds, time by phase, and accuracy against a setting."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from polyfed.comparison.table import order_of
from polyfed.errors import InputError
from polyfed.report.curve_figures import MEASURES
from polyfed.report.figure_spec import COLORS, HATCHES, Cell, Group, Options, Picture, legend, look, plain
from polyfed.report.run_groups import grouped, mean_and_spread, over_rounds
from polyfed.report.run_record import PHASES, Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MIB = 1 << 20
MOST_PATHS = 6  # with more groups, only where they end is drawn
WIDE = 30  # costs that differ by more than this factor are drawn on a logarithmic axis


def spent(record: Record, against: str) -> list[float]:
    """MiB that travelled in both directions, or seconds of training and server work, up to each round."""
    if against == "bytes":
        return list(itertools.accumulate((up + down) / MIB for up, down in zip(record.up, record.down, strict=True)))
    parts = [record.seconds[part] for part in ("train", "server") if part in record.seconds]
    by_round = [sum(values) for values in zip(*parts, strict=True)] if parts else record.seconds.get("total", [])
    return list(itertools.accumulate(by_round))


def pareto(points: Sequence[tuple[float, float]]) -> list[int]:
    """Which of (cost, value) no other point beats: none costs less for as much, or gives more for as little."""
    return [
        at
        for at, (cost, value) in enumerate(points)
        if not any(
            other_cost <= cost and other >= value and (other_cost, other) != (cost, value)
            for other_cost, other in points
        )
    ]


def accuracy_against_cost(records: Sequence[Record], options: Options) -> Picture:
    """Where each method ends: accuracy against what it cost, and the front that nobody beats."""
    unit = {"bytes": "MiB, both directions", "seconds": "seconds of training and server work"}[options.against]
    paths: list[tuple[Group, list[tuple[float, float]]]] = []
    ends: list[tuple[float, float, float | None]] = []
    for group in grouped(records, options.by):
        values = {
            number: 100 * mean
            for number, mean, _, _ in over_rounds(group, lambda r: r.accuracy.get(options.measure, []))
        }
        costs = {number: mean for number, mean, _, _ in over_rounds(group, lambda r: spent(r, options.against))}
        finals = [100 * value for record in group.records if (value := record.last(options.measure)) is not None]
        totals = [path[-1] for record in group.records if (path := spent(record, options.against))]
        if values and finals and totals:
            paths.append((group, [(costs[number], value) for number, value in values.items()]))
            ends.append((mean_and_spread(totals)[0], *mean_and_spread(finals)))
    if not paths:
        raise InputError(f"no run has a {options.measure} accuracy yet")
    front = sorted(pareto([(cost, value) for cost, value, _ in ends]), key=lambda at: ends[at][0])

    def draw(figure: Figure) -> None:
        axes = plain(figure.add_subplot())
        steps = [(ends[at][0], ends[at][1]) for at in front]
        if len(paths) > 1:
            axes.plot(*zip(*steps, strict=True), drawstyle="steps-post", color="#808080", lw=1, ls=":", label="front")
        for at, ((group, path), (cost, value, spread)) in enumerate(zip(paths, ends, strict=True)):
            style = group.look
            if len(paths) <= MOST_PATHS:
                axes.plot(*zip(*path, strict=True), color=style.color, linestyle=style.dashes, lw=0.9, alpha=0.6)
            axes.errorbar(
                [cost],
                [value],
                yerr=None if spread is None else [spread],
                color=style.color,
                marker=style.marker,
                markersize=7 if at in front else 5,
                markerfacecolor=style.color if at in front else "none",
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
        (group.label, cost, value, spread, "yes" if at in front else "no")
        for at, ((group, _), (cost, value, spread)) in enumerate(zip(paths, ends, strict=True))
    ]
    listed = "; ".join(
        f"{g.label} {v:.2f} % for {c:.4g}" for (g, _), (c, v, _) in list(zip(paths, ends, strict=True))[:12]
    )
    words = f"Final {MEASURES[options.measure]} against {unit}: {listed}."
    if len(paths) > 1:
        words += (
            f" Not beaten by any other (filled marks, dotted front): {', '.join(paths[at][0].label for at in front)}."
        )
    columns = ("runs", unit, "accuracy %", "deviation", "on the front")
    return Picture(f"{options.measure.capitalize()} accuracy against {options.against}", words, columns, rows, draw)


def _scale(axes: Axes, ends: Sequence[float], all_costs: Sequence[float]) -> None:
    """Costs of very different size need a logarithmic axis, which has no zero; around zero it is linear then."""
    positive = [cost for cost in ends if cost > 0]
    if len(positive) > 1 and max(positive) / min(positive) > WIDE:
        if min(all_costs) > 0:
            axes.set_xscale("log")
        else:
            axes.set_xscale("symlog", linthresh=min(positive))
            axes.set_xlim(left=-0.1 * min(positive))


def phases(records: Sequence[Record], options: Options) -> Picture:
    """Seconds a round, by what they were spent on."""
    rows: list[tuple[Cell, ...]] = []
    shown: list[tuple[Group, list[float]]] = []
    for group in grouped(records, options.by):
        found = [record for record in group.records if all(record.seconds.get(part) for part in PHASES)]
        if found:
            means = [mean_and_spread([mean_and_spread(r.seconds[part])[0] for r in found])[0] for part in PHASES]
            shown.append((group, means))
            rows.append((group.label, *means))
    if not shown:
        raise InputError("no run has told what its rounds spent time on yet")
    names = ("client steps", "evaluation", "server")

    def draw(figure: Figure) -> None:
        axes = plain(figure.add_subplot())
        axes.grid(False, axis="y")
        base = [0.0] * len(shown)
        places = range(len(shown))
        for at, name in enumerate(names):
            widths = [means[at] for _, means in shown]
            axes.barh(
                places,
                widths,
                left=base,
                height=0.62,
                color=COLORS[at],
                alpha=0.85,
                hatch=HATCHES[at],
                edgecolor="white",
                linewidth=0.4,
                label=name,
            )
            base = [start + width for start, width in zip(base, widths, strict=True)]
        axes.set_yticks(list(places), [group.label for group, _ in shown])
        axes.invert_yaxis()
        axes.set_xlabel("seconds a round, mean")
        legend(figure)

    most = max(shown, key=lambda one: sum(one[1]))
    words = (
        "Mean seconds a round that the server waited for client steps, that evaluation took and that the server "
        "worked itself; evaluation may overlap with the server's work. "
        + "; ".join(f"{g.label}: {a:.3g}, {b:.3g} and {c:.3g}" for g, (a, b, c) in shown[:12])
        + (f". The longest rounds are those of {most[0].label}." if len(shown) > 1 else ".")
    )
    return Picture("Time by phase", words, ("runs", *names), rows, draw, (3.6, 1.2 + 0.28 * len(shown)))


def sensitivity(records: Sequence[Record], options: Options) -> Picture:
    """Final accuracy against the values of one setting, a line per method."""
    if len(options.by) != 1:
        raise InputError("a figure 'sensitivity' shows one setting: name it with --by, e.g. --by train.lr")
    key = options.by[0]
    grouped(records, options.by)  # says so where there is no such setting
    values = sorted({record.setting(key) for record in records}, key=order_of)
    methods = sorted({record.method for record in records})
    rows: list[tuple[Cell, ...]] = []
    for method, value in itertools.product(methods, values):
        finals = [
            100 * final
            for record in records
            if record.method == method and record.setting(key) == value
            if (final := record.last(options.measure)) is not None
        ]
        if finals:
            rows.append((method, value, *mean_and_spread(finals), len(finals)))
    if not rows:
        raise InputError(f"no run has a {options.measure} accuracy yet")

    def draw(figure: Figure) -> None:
        axes = plain(figure.add_subplot())
        for at, method in enumerate(methods):
            own = [row for row in rows if row[0] == method]
            style = look(at)
            axes.errorbar(
                [values.index(str(row[1])) for row in own],
                [float(row[2] or 0) for row in own],
                yerr=[float(row[3] or 0) for row in own],
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

    words = f"Final {MEASURES[options.measure]} for each value of {key}, mean and sample deviation over seeds: "
    words += "; ".join(f"{row[0]} at {row[1]}: {row[2]:.2f} %" for row in rows[:12]) + "."
    columns = ("method", key, "accuracy %", "deviation", "n")
    return Picture(f"Accuracy by {key}", words, columns, rows, draw)
