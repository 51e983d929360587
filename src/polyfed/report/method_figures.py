"""Figures that compare methods: accuracy as bars, gain over a baseline, and gain by client as a heat map."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from polyfed.comparison.gain import client_differences, difference, half_width
from polyfed.comparison.measures import ACCURACIES, Measure
from polyfed.comparison.runs import HEAD, Run, by_head
from polyfed.errors import InputError
from polyfed.report.curve_figures import MEASURES
from polyfed.report.drawing import (
    SMALL,
    clipped,
    label_positions,
    shorten,
    signed,
    style_axes,
)
from polyfed.report.figure_spec import WIDTH, Cell, FigureSpec, Options
from polyfed.report.run_groups import Group, by_setting, describe_counts, group_runs, mean_and_std
from polyfed.report.run_record import RunRecord
from polyfed.report.styles import NEUTRAL, diverging, style_of_method

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROW = 0.28  # inches of a bar
LINE = 8.5  # points that a line of text needs
MAX_NUMBERED = 26  # rows of a heat map whose cells hold numbers
MAX_NUMBERED_COLUMNS = 7


@dataclass(frozen=True)
class Bar:
    """A bar or point of a figure: its group, value and interval, and the text at its right."""

    group: Group
    value: float
    low: float | None
    high: float | None
    text: str


def methods(records: Sequence[RunRecord], options: Options) -> FigureSpec:
    """Plot the final accuracy of every method as bars with 95 % confidence intervals over seeds."""
    bars: list[Bar] = []
    rows: list[tuple[Cell, ...]] = []
    for group in group_runs(records, options.by):
        finals = [100 * v for record in group.records if (v := record.final_accuracy(options.measure)) is not None]
        heads = _heads(group)
        by_heads = [v for run in heads if (v := _measure(options).read(run.result)) is not None]
        for one, values in ((group, finals), (_head_group(group), by_heads)):
            if values:
                mean, std = mean_and_std(values)
                half = half_width(values) if len(values) > 1 else None
                low, high = (None, None) if half is None else (mean - half, mean + half)
                bars.append(Bar(one, mean, low, high, f"{mean:.1f}"))
                rows.append((one.label, mean, std, low, high, len(values)))
    if not bars:
        raise InputError(f"no run has a {options.measure} accuracy yet")

    def draw(figure: Figure) -> None:
        import matplotlib

        axes = style_axes(figure.add_subplot(), grid="x")
        for place, bar in _place_bars(axes, bars):
            axes.barh(
                place,
                bar.value,
                height=0.66,
                color=bar.group.method_style.color,
                hatch=bar.group.method_style.hatch,
                alpha=0.85,
                edgecolor="white",
                linewidth=0,
                xerr=clipped(bar.value, bar.low, bar.high),
                error_kw={"elinewidth": 1, "capsize": 2.5, "ecolor": matplotlib.rcParams["text.color"]},
            )
        axes.set_xlim(0, 100)
        figure.supxlabel(f"{MEASURES[options.measure]}, %", fontsize=8)

    caption = f"{describe_counts([bar.group for bar in bars])} after the last round."
    if any(bar.low is not None for bar in bars):
        caption += " Whiskers: 95 % confidence interval over seeds, cut at 0 and 100 %."
    columns = ("runs", "accuracy %", "std", "interval low", "interval high", "n")
    title = f"{options.measure.capitalize()} accuracy by method"
    return FigureSpec(title, caption, columns, rows, draw, (WIDTH, _height(bars)))


def gain(records: Sequence[RunRecord], options: Options) -> FigureSpec:
    """Plot the gain of every method over the baseline, with 95 % confidence intervals."""
    measure = _measure(options)
    bars: list[Bar] = []
    rows: list[tuple[Cell, ...]] = []
    for group, baseline in _with_baseline(records, options):
        reference = [run for one in baseline for run in _runs(one)]
        for one, runs in ((group, _runs(group)), (_head_group(group), _heads(group))):
            gap = difference(runs, reference, measure)
            if gap is not None:
                bars.append(Bar(one, gap.mean, gap.low, gap.high, signed(gap.mean, 1)))
                rows.append((one.label, gap.mean, gap.low, gap.high, gap.n, gap.over))
    if not bars:
        raise InputError(f"no run has a seed in common with a finished run of '{options.baseline}'")

    def draw(figure: Figure) -> None:
        axes = style_axes(figure.add_subplot(), grid="x")
        for place, bar in _place_bars(axes, bars):
            style = bar.group.method_style
            axes.errorbar(
                [bar.value],
                [place],
                xerr=clipped(bar.value, bar.low, bar.high, (-100.0, 100.0)),
                color=style.color,
                marker=style.marker,
                markersize=6,
                capsize=3,
                elinewidth=1.6,
                linestyle="none",
            )
        low, high = axes.get_xlim()
        axes.set_xlim(min(low, -1.0), max(high, 1.0))
        axes.axvline(0, color=NEUTRAL, lw=1)
        figure.supxlabel(f"points above {_baseline_name(options)}, {_where(options)}", fontsize=8)

    over = sorted({str(row[5]) for row in rows if row[5]})
    caption = f"Difference to {_baseline_name(options)} in {MEASURES[options.measure]}, paired by seed."
    if over:
        caption += f" Whiskers: 95 % confidence interval over {' or '.join(over)}."
        caption += " An interval without 0 shows a difference."
    columns = ("runs", "gain, points", "interval low", "interval high", "common seeds", "interval over")
    title = f"Gain over {_baseline_name(options)}, {_where(options)}"
    return FigureSpec(title, caption, columns, rows, draw, (WIDTH, _height(bars)))


def gain_by_client(records: Sequence[RunRecord], options: Options) -> FigureSpec:
    """Show the gain of every client over the baseline as a heat map of clients by methods."""
    columns = list(_with_baseline(records, options))
    blocks = _client_blocks(records, columns, _measure(options))
    if not blocks:
        raise InputError(f"no run has clients in common with a finished run of '{options.baseline}'")
    names = [shorten(group.label, 22) for group, _ in columns]
    rows: list[tuple[Cell, ...]] = [
        (block, client, names[column], value)
        for block, lines in blocks
        for client, values in lines
        for column, value in values.items()
    ]
    # a line of the picture: a heading of a block, or a client
    lines: list[tuple[str, dict[int, float]]] = []
    for block, clients in blocks:
        lines += [(block, {})] if len(blocks) > 1 else []
        lines += clients
    height = min(6.5, max(1.2, 0.19 * len(lines)))
    largest = max(1.0, max(abs(float(row[3] or 0)) for row in rows))

    def draw(figure: Figure) -> None:
        import numpy as np

        axes = figure.add_subplot()
        cells = np.full((len(lines), len(columns)), np.nan)
        for line, (_, values) in enumerate(lines):
            for column, value in values.items():
                cells[line, column] = value
                if len(lines) <= MAX_NUMBERED and len(columns) <= MAX_NUMBERED_COLUMNS:
                    axes.text(column, line, signed(value), ha="center", va="center", fontsize=SMALL)
        image = axes.imshow(cells, cmap=diverging(), vmin=-largest, vmax=largest, interpolation="none", aspect="auto")
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        label_positions(axes, names, axis="x", room=2.0)
        axes.xaxis.tick_top()
        headings = [place for place, (_, values) in enumerate(lines) if not values]
        if headings and 72 * height / len(lines) < LINE:  # no room for names of clients
            axes.set_yticks(headings, [lines[place][0] for place in headings])
        else:
            label_positions(axes, [name for name, _ in lines], axis="y", room=height)
        bar = figure.colorbar(image, ax=axes, location="bottom", shrink=0.7, aspect=30, pad=0.03)
        bar.outline.set_visible(False)
        bar.ax.tick_params(length=0)
        bar.set_label(f"points above {_baseline_name(options)}")

    caption = (
        f"Difference of each client to itself under {_baseline_name(options)}, {_where(options)}. Blue is above, "
        "orange is below."
    )
    if len(blocks) > 1:
        caption += " Seeds have different data partitions, so clients are listed by seed."
    title = f"Gain of each client, {_where(options)}"
    return FigureSpec(
        title, caption, ("runs of", "client", "method", "gain, points"), rows, draw, (WIDTH, height + 1.1)
    )


def _client_blocks(
    records: Sequence[RunRecord], columns: Sequence[tuple[Group, list[Group]]], measure: Measure
) -> list[tuple[str, list[tuple[str, dict[int, float]]]]]:
    """Return blocks of clients with their gain by column: one block, or one per seed if seeds differ in partition."""
    differ = any(len({_partition(record) for record in group.records}) > 1 for group, _ in columns)
    seeds: list[int | None] = [*sorted({record.seed for record in records})]
    blocks = []
    for seed in seeds if differ else [None]:
        own = [record for record in records if seed is None or record.seed == seed]
        labels = [f"{client.name} · {client.model}" for client in own[0].clients] if own else []
        gains: dict[int, dict[int, float]] = {}
        for column, (group, baseline) in enumerate(columns):
            members = [run for run in _runs(group) if seed is None or run.seed == seed]
            others = [run for one in baseline for run in _runs(one) if seed is None or run.seed == seed]
            for client, value in client_differences(members, others, measure).items():
                gains.setdefault(client, {})[column] = value
        lines = [
            (labels[client] if client < len(labels) else str(client), values)
            for client, values in sorted(gains.items())
        ]
        if lines:
            blocks.append(("all seeds" if seed is None else f"seed {seed}", lines))
    return blocks


def _partition(record: RunRecord) -> tuple[object, ...]:
    return tuple((client.model, *sorted(client.train_counts.items())) for client in record.clients)


def _with_baseline(records: Sequence[RunRecord], options: Options) -> Iterator[tuple[Group, list[Group]]]:
    """Yield every group that is not the baseline, with the groups of the baseline in the same setting."""
    groups = group_runs([record for record in records if record.state == "finished"], options.by)
    if all(group.method != options.baseline for group in groups):
        raise InputError(f"no run of the baseline '{options.baseline}' has finished, so there is no gain to show")
    for group in groups:
        if group.method != options.baseline:
            same = [one for one in groups if one.method == options.baseline and one.setting == group.setting]
            if same:
                yield group, same


def _runs(group: Group) -> list[Run]:
    return [record.as_run() for record in group.records]


def _heads(group: Group) -> list[Run]:
    """Return the runs of a group with the accuracies of their heads, if the method predicts in another way."""
    finished = [record.as_run() for record in group.records if record.state == "finished"]
    return [head for run in finished if (head := by_head(run)) is not None]


def _head_group(group: Group) -> Group:
    """Return a group for the heads of the same models."""
    lighter = style_of_method(group.records[0].method, 1)
    return replace(group, method=f"{group.method} by {HEAD}", style=lighter, method_style=lighter)


def _measure(options: Options) -> Measure:
    return next(one for one in ACCURACIES if one.kind == options.measure and not one.best)


def _where(options: Options) -> str:
    return "common test set" if options.measure == "global" else "own held-out data"


def _baseline_name(options: Options) -> str:
    return "local training" if options.baseline == "local" else options.baseline


def _height(bars: Sequence[Bar]) -> float:
    settings = by_setting([bar.group for bar in bars])
    lines = len(bars) + (len(settings) if len(settings) > 1 else 0)
    return max(1.1, 0.62 + ROW * lines)


def _place_bars(axes: Axes, bars: Sequence[Bar]) -> Iterator[tuple[int, Bar]]:
    """Yield bars with their places from top to bottom, and label them. Settings have lines of their own."""
    settings = by_setting([bar.group for bar in bars])
    by_label = {bar.group.label: bar for bar in bars}
    names: list[str] = []
    for setting, groups in settings.items():
        if len(settings) > 1:
            names.append(shorten(setting))
        for group in groups:
            bar = by_label[group.label]
            yield len(names), bar
            names.append(shorten(group.name))
            axes.text(
                1.015, len(names) - 1, bar.text, transform=axes.get_yaxis_transform(), va="center", fontsize=7.5
            )
    axes.set_yticks(range(len(names)), names)
    if len(settings) > 1:
        for label in axes.get_yticklabels():
            if label.get_text() in {shorten(setting) for setting in settings}:
                label.set_fontweight("bold")
    axes.set_ylim(len(names) - 0.4, -0.6)
