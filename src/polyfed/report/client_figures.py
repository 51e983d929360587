"""Figures of clients: accuracy of each client, accuracy by architecture, and label distribution."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from polyfed.errors import InputError
from polyfed.report.curve_figures import MEASURES
from polyfed.report.drawing import (
    clipped,
    height_with_legend,
    integer_ticks,
    label_positions,
    legend,
    per_cent_axis,
    style_axes,
    value_label,
)
from polyfed.report.figure_spec import WIDTH, Cell, FigureSpec, Options
from polyfed.report.run_groups import Group, describe_counts, group_runs, mean_and_std
from polyfed.report.run_record import RunRecord
from polyfed.report.styles import NEUTRAL, style_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_BARS = 60  # more clients are drawn as points
MAX_CLIENTS = 100  # in a figure of the partition
RASTER = 2000  # points above which a figure embeds an image instead of paths


def by_client(records: Sequence[RunRecord], options: Options) -> FigureSpec:
    """Plot the accuracy of every client, sorted: bars by architecture for one run, a line per group for several."""
    measured = [record for record in records if _accuracies(record, options.measure)]
    if not measured:
        raise InputError(f"no run has a {options.measure} accuracy by client yet")
    return _one_run(measured[0], options) if len(measured) == 1 else _many_runs(measured, options)


def _accuracies(record: RunRecord, measure: str) -> list[tuple[int, float]]:
    """Return pairs of client and accuracy in per cent."""
    values = record.accuracy_by_client.get(measure, [])
    return [(client, 100 * value) for client, value in enumerate(values) if value is not None]


def _one_run(record: RunRecord, options: Options) -> FigureSpec:
    accuracies = sorted(_accuracies(record, options.measure), key=lambda pair: pair[1])
    models = models_by_size([record])
    values = [value for _, value in accuracies]

    def draw(figure: Figure) -> None:
        axes = style_axes(figure.add_subplot())
        for index, model in enumerate(models or [""]):
            bars = [
                (place, value) for place, (client, value) in enumerate(accuracies) if record.model_of(client) == model
            ]
            places, heights = [place for place, _ in bars], [value for _, value in bars]
            style = style_for(index)
            if len(accuracies) <= MAX_BARS:
                axes.bar(
                    places,
                    heights,
                    width=0.8,
                    color=style.color,
                    hatch=style.hatch,
                    edgecolor="white",
                    linewidth=0,
                    label=model,
                )
            else:
                axes.plot(places, heights, style.marker, color=style.color, ms=2.5, label=model)
        axes.axhline(statistics.fmean(values), color=NEUTRAL, lw=0.9, ls="--")
        axes.set_xlim(-0.7, len(accuracies) - 0.3)
        if len(accuracies) <= MAX_BARS:
            label_positions(axes, [_client_name(record, client) for client, _ in accuracies], axis="x", room=3.1)
        else:
            axes.set_xticks([])
        axes.set_xlabel("client, sorted by accuracy")
        value_label(axes, f"{MEASURES[options.measure]}, %")
        per_cent_axis(axes)
        legend(figure)

    rows: list[tuple[Cell, ...]] = [(client, record.model_of(client), value) for client, value in accuracies]
    caption = "Each client in the last evaluated round, by architecture. Dashed line: mean."
    columns = ("client", "model", "accuracy %")
    title = f"{options.measure.capitalize()} accuracy of each client"
    return FigureSpec(title, caption, columns, rows, draw, (WIDTH, height_with_legend(2.6, models)))


def _client_name(record: RunRecord, client: int) -> str:
    return record.clients[client].name if client < len(record.clients) else str(client)


def _many_runs(records: Sequence[RunRecord], options: Options) -> FigureSpec:
    lines: list[tuple[Group, list[float]]] = []
    for group in group_runs(records, options.by):
        ranked = [sorted(value for _, value in _accuracies(record, options.measure)) for record in group.records]
        shortest = min(len(values) for values in ranked)
        lines.append((group, [statistics.fmean(values[rank] for values in ranked) for rank in range(shortest)]))

    def draw(figure: Figure) -> None:
        axes = style_axes(figure.add_subplot())
        for group, values in lines:
            style = group.style
            axes.plot(
                range(1, len(values) + 1),
                values,
                color=style.color,
                linestyle=style.dashes,
                marker=style.marker,
                markevery=max(1, len(values) // 8),
                label=group.label,
            )
        integer_ticks(axes)
        axes.set_xlabel("clients, sorted by accuracy")
        value_label(axes, f"{MEASURES[options.measure]}, %")
        per_cent_axis(axes)
        legend(figure)

    rows: list[tuple[Cell, ...]] = [
        (group.label, rank, value) for group, values in lines for rank, value in enumerate(values, 1)
    ]
    caption = f"{describe_counts([group for group, _ in lines])}, from the client with the lowest accuracy upwards."
    title = f"{options.measure.capitalize()} accuracy of the clients, sorted"
    size = (WIDTH, height_with_legend(2.6, [group.label for group, _ in lines]))
    return FigureSpec(title, caption, ("runs", "rank", "accuracy %"), rows, draw, size)


def models_by_size(records: Sequence[RunRecord]) -> list[str]:
    """Return the architectures of some runs, from the smallest to the largest."""
    sizes = {client.model: client.parameters for record in records for client in record.clients}
    return sorted(sizes, key=lambda model: (sizes[model], model))


def by_architecture(records: Sequence[RunRecord], options: Options) -> FigureSpec:
    """Plot mean accuracy by architecture, from the smallest model to the largest."""
    usable = [record for record in records if record.clients and _accuracies(record, options.measure)]
    if not usable:
        raise InputError("no run has an accuracy by client together with a clients.json that names their models")
    models = models_by_size(usable)
    rows: list[tuple[Cell, ...]] = []
    groups = group_runs(usable, options.by)
    for group in groups:
        for model in models:
            values = [
                value
                for record in group.records
                for client, value in _accuracies(record, options.measure)
                if record.model_of(client) == model
            ]
            if values:
                rows.append((group.label, model, *mean_and_std(values), len(values)))

    def draw(figure: Figure) -> None:
        axes = style_axes(figure.add_subplot())
        step = 0.7 / max(1, len(groups))
        for index, group in enumerate(groups):
            points = [row for row in rows if row[0] == group.label]
            for row in points:
                mean, std = float(row[2] or 0), float(row[3] or 0)
                axes.errorbar(
                    [models.index(str(row[1])) + (index - (len(groups) - 1) / 2) * step],
                    [mean],
                    yerr=clipped(mean, mean - std, mean + std),
                    color=group.style.color,
                    marker=group.style.marker,
                    linestyle="none",
                    capsize=2,
                    elinewidth=0.9,
                    label=group.label if row is points[0] else None,
                )
        label_positions(axes, models, axis="x", room=3.1)
        axes.set_xlim(-0.6, len(models) - 0.4)
        value_label(axes, f"{MEASURES[options.measure]}, %")
        per_cent_axis(axes)
        legend(figure)

    caption = "Means over clients and seeds, from small to large models. Whiskers: one sample standard deviation."
    columns = ("runs", "model", "accuracy %", "std over clients", "clients")
    title = f"{options.measure.capitalize()} accuracy by architecture"
    size = (WIDTH, height_with_legend(2.6, [group.label for group in groups]))
    return FigureSpec(title, caption, columns, rows, draw, size)


def partition(records: Sequence[RunRecord], options: Options) -> FigureSpec:
    """Plot the label distribution: a bubble per client and class, its area proportional to the training samples."""
    record = records[0]
    if not record.clients:
        raise InputError(f"{record.path} has no clients.json, which holds the samples of each client by class")
    shown, classes = record.clients[:MAX_CLIENTS], len(record.class_names)
    rows: list[tuple[Cell, ...]] = [
        (client.name, client.model, record.class_names[label], count)
        for client in shown
        for label, count in sorted(client.train_counts.items())
    ]
    totals = [sum(client.train_counts.values()) for client in record.clients]
    classes_held = [len(client.train_counts) for client in record.clients]
    most = max((count for client in shown for count in client.train_counts.values()), default=1)

    size = (WIDTH, min(6.0, max(3.0, 1.5 + 0.17 * classes)))

    def draw(figure: Figure) -> None:
        axes = style_axes(figure.add_subplot(), grid="both")
        full = min(170.0, 0.75 * (72 * 2.9 / max(len(shown), classes, 4)) ** 2)  # the largest neighbours just touch
        points = [(x, label, count) for x, client in enumerate(shown) for label, count in client.train_counts.items()]
        axes.scatter(
            [x for x, _, _ in points],
            [label for _, label, _ in points],
            s=[max(0.6, full * count / most) for _, _, count in points],
            color=style_for(0).color,
            alpha=0.8,
            linewidths=0,
            rasterized=len(points) > RASTER,
        )
        _bubble_sizes(axes, most, full)
        axes.set_xlabel("client")
        value_label(axes, "class")
        axes.set_xlim(-0.8, len(shown) - 0.2)
        axes.set_ylim(-0.8, classes - 0.2)
        label_positions(axes, record.class_names, axis="y", room=size[1] - 1.2)
        label_positions(axes, [client.name for client in shown], axis="x", room=2.8)
        legend(figure, title="training samples", borderpad=0.9)

    caption = (
        f"The area of a bubble is the number of training samples. {len(record.clients)} clients hold {min(totals)} "
        f"to {max(totals)} samples of {min(classes_held)} to {max(classes_held)} of {classes} classes."
    )
    if len(record.clients) > MAX_CLIENTS:
        caption += f" Only the first {MAX_CLIENTS} are drawn."
    columns = ("client", "model", "class", "training samples")
    return FigureSpec("Label distribution of clients", caption, columns, rows, draw, size)


def _bubble_sizes(axes: Axes, most: int, full: float) -> None:
    """Add bubbles of three sizes to the legend."""
    for count in sorted({max(1, round(most * part)) for part in (0.1, 0.5, 1.0)}):
        axes.scatter([], [], s=max(0.6, full * count / most), color=style_for(0).color, alpha=0.8, label=str(count))
