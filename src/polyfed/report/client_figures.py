"""Figures of clients: their accuracies, sorted and by architecture, and which classes they hold."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from polyfed.errors import InputError
from polyfed.report.curve_figures import MEASURES
from polyfed.report.figure_spec import HATCHES, Cell, Group, Options, Picture, legend, look, plain, whole_rounds
from polyfed.report.run_groups import grouped, mean_and_spread
from polyfed.report.run_record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_BARS = 60  # more clients are drawn as points
MOST_BUBBLES = 100  # clients in a figure of the partition
RASTER = 2000  # marks beyond which a figure is an image inside its file


def by_client(records: Sequence[Record], options: Options) -> Picture:
    """Accuracy of every client, sorted: of one run by architecture, of several as a line each."""
    measured = [record for record in records if _known(record, options.measure)]
    if not measured:
        raise InputError(f"no run has a {options.measure} accuracy by client yet")
    return _one_run(measured[0], options) if len(measured) == 1 else _many_runs(measured, options)


def _known(record: Record, measure: str) -> list[tuple[int, float]]:
    values = record.by_client.get(measure, [])
    return [(client, 100 * value) for client, value in enumerate(values) if value is not None]


def _one_run(record: Record, options: Options) -> Picture:
    known = sorted(_known(record, options.measure), key=lambda pair: pair[1])
    models = models_by_size([record])
    values = [value for _, value in known]

    def draw(figure: Figure) -> None:
        axes = plain(figure.add_subplot())
        for at, model in enumerate(models or [""]):
            own = [(place, value) for place, (client, value) in enumerate(known) if record.model_of(client) == model]
            places, heights = [place for place, _ in own], [value for _, value in own]
            style = look(at)
            if len(known) <= MOST_BARS:
                axes.bar(
                    places,
                    heights,
                    width=0.8,
                    color=style.color,
                    alpha=0.85,
                    hatch=HATCHES[at % len(HATCHES)],
                    edgecolor="white",
                    linewidth=0.3,
                    label=model,
                )
            else:
                axes.plot(places, heights, style.marker, color=style.color, ms=2.5, label=model)
        axes.axhline(statistics.fmean(values), color="#808080", lw=0.9, ls="--")
        if len(known) <= 30:
            axes.set_xticks(range(len(known)), [str(client) for client, _ in known], fontsize=6.5)
        else:
            axes.set_xticks([])
        axes.grid(False, axis="x")
        axes.set_xlabel("client, sorted by accuracy")
        axes.set_ylabel(f"{MEASURES[options.measure]}, %")
        legend(figure)

    rows: list[tuple[Cell, ...]] = [(client, record.model_of(client), value) for client, value in known]
    words = (
        f"{len(known)} clients of {record.name}, sorted: from {values[0]:.1f} % (client {known[0][0]}) to "
        f"{values[-1]:.1f} % (client {known[-1][0]}), mean {statistics.fmean(values):.1f} % (dashed line)."
    )
    columns = ("client", "model", "accuracy %")
    return Picture(f"{options.measure.capitalize()} accuracy of each client", words, columns, rows, draw)


def _many_runs(records: Sequence[Record], options: Options) -> Picture:
    lines: list[tuple[Group, list[float]]] = []
    for group in grouped(records, options.by):
        ranked = [sorted(value for _, value in _known(record, options.measure)) for record in group.records]
        shortest = min(len(values) for values in ranked)
        lines.append((group, [statistics.fmean(values[at] for values in ranked) for at in range(shortest)]))

    def draw(figure: Figure) -> None:
        axes = plain(figure.add_subplot())
        for group, values in lines:
            style = group.look
            axes.plot(
                range(1, len(values) + 1),
                values,
                color=style.color,
                linestyle=style.dashes,
                marker=style.marker,
                markevery=max(1, len(values) // 8),
                label=group.label,
            )
        whole_rounds(axes)
        axes.set_xlabel("clients, from the lowest accuracy to the highest")
        axes.set_ylabel(f"{MEASURES[options.measure]}, %")
        legend(figure)

    rows: list[tuple[Cell, ...]] = [
        (group.label, at, value) for group, values in lines for at, value in enumerate(values, 1)
    ]
    words = "Accuracy of the clients in order, mean over seeds. Lowest, median and highest client: " + "; ".join(
        f"{g.label} {v[0]:.1f}, {statistics.median(v):.1f} and {v[-1]:.1f} %" for g, v in lines[:12] if v
    )
    title = f"{options.measure.capitalize()} accuracy of the clients, sorted"
    return Picture(title, words + ".", ("runs", "place", "accuracy %"), rows, draw)


def models_by_size(records: Sequence[Record]) -> list[str]:
    """The architectures of some runs, from the smallest to the largest."""
    sizes = {share.model: share.numbers for record in records for share in record.shares}
    return sorted(sizes, key=lambda model: (sizes[model], model))


def by_architecture(records: Sequence[Record], options: Options) -> Picture:
    """Mean accuracy of the clients that have an architecture, from the smallest model to the largest."""
    told = [record for record in records if record.shares and _known(record, options.measure)]
    if not told:
        raise InputError("no run has an accuracy by client together with a clients.json that names their models")
    models = models_by_size(told)
    rows: list[tuple[Cell, ...]] = []
    groups = grouped(told, options.by)
    for group in groups:
        for model in models:
            values = [
                value
                for record in group.records
                for client, value in _known(record, options.measure)
                if record.model_of(client) == model
            ]
            if values:
                rows.append((group.label, model, *mean_and_spread(values), len(values)))

    def draw(figure: Figure) -> None:
        axes = plain(figure.add_subplot())
        axes.grid(False, axis="x")
        step = 0.7 / max(1, len(groups))
        for at, group in enumerate(groups):
            own = [row for row in rows if row[0] == group.label]
            axes.errorbar(
                [models.index(str(row[1])) + (at - (len(groups) - 1) / 2) * step for row in own],
                [float(row[2] or 0) for row in own],
                yerr=[float(row[3] or 0) for row in own],
                color=group.look.color,
                marker=group.look.marker,
                linestyle="none",
                capsize=2,
                elinewidth=0.9,
                label=group.label,
            )
        axes.set_xticks(range(len(models)), models, rotation=20 if len(models) > 3 else 0)
        axes.set_xlim(-0.6, len(models) - 0.4)
        axes.set_ylabel(f"{MEASURES[options.measure]}, %")
        legend(figure)

    words = (
        "Mean and deviation over clients (and seeds) by architecture, from the smallest to the largest: "
        + "; ".join(f"{row[0]} {row[1]} {row[2]:.1f} %" for row in rows[:16])
    )
    columns = ("runs", "model", "accuracy %", "deviation over clients", "clients")
    return Picture(
        f"{options.measure.capitalize()} accuracy by architecture", words + ".", columns, rows, draw, (3.6, 3.2)
    )


def partition(records: Sequence[Record], options: Options) -> Picture:
    """Which client holds how many training samples of which class: the area of a bubble is the number."""
    record = records[0]
    if not record.shares:
        raise InputError(f"{record.path} has no clients.json, which says how many samples of a class a client holds")
    shares, classes = record.shares[:MOST_BUBBLES], len(record.class_names)
    rows: list[tuple[Cell, ...]] = [
        (share.name, share.model, record.class_names[label], count)
        for share in shares
        for label, count in sorted(share.train.items())
    ]
    totals = [sum(share.train.values()) for share in record.shares]
    held = [len(share.train) for share in record.shares]
    most = max((count for share in shares for count in share.train.values()), default=1)

    def draw(figure: Figure) -> None:
        axes = plain(figure.add_subplot())
        full = min(170.0, 0.75 * (72 * 2.9 / max(len(shares), classes, 4)) ** 2)  # so that neighbours just touch
        points = [(x, label, count) for x, share in enumerate(shares) for label, count in share.train.items()]
        axes.scatter(
            [x for x, _, _ in points],
            [label for _, label, _ in points],
            s=[max(0.6, full * count / most) for _, _, count in points],
            color=look(0).color,
            alpha=0.8,
            linewidths=0,
            rasterized=len(points) > RASTER,
        )
        _bubble_sizes(axes, most, full)
        axes.set_xlabel("client")
        axes.set_ylabel("class")
        axes.set_xlim(-0.8, len(shares) - 0.2)
        axes.set_ylim(-0.8, classes - 0.2)
        if classes <= 20:
            axes.set_yticks(range(classes), record.class_names, fontsize=7)
        whole_rounds(axes)
        legend(figure, title="training samples")

    words = (
        f"Training samples by client and class; the area of a bubble is their number, at most {most}. "
        f"{len(record.shares)} clients hold {min(totals)} to {max(totals)} samples of {min(held)} to {max(held)} "
        f"of {classes} classes."
    )
    if len(record.shares) > MOST_BUBBLES:
        words += f" Drawn are the first {MOST_BUBBLES}."
    columns = ("client", "model", "class", "training samples")
    size = (3.6, min(6.0, max(3.0, 1.6 + 0.17 * classes)))
    return Picture("Who holds what", words, columns, rows, draw, size)


def _bubble_sizes(axes: Axes, most: int, full: float) -> None:
    for count in sorted({max(1, round(most * part)) for part in (0.1, 0.5, 1.0)}):
        axes.scatter([], [], s=max(0.6, full * count / most), color=look(0).color, alpha=0.8, label=str(count))
