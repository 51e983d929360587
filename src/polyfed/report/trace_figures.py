"""Figures of events that methods record: FedFree's layers and InCo's coefficients."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from polyfed.errors import InputError
from polyfed.report.clean_text import clean
from polyfed.report.drawing import (
    distinct_parts,
    height_with_legend,
    integer_ticks,
    label_positions,
    legend,
    shorten,
    style_axes,
    value_label,
)
from polyfed.report.figure_spec import WIDTH, Cell, FigureSpec, Options
from polyfed.report.run_record import RunRecord
from polyfed.report.styles import HIGHER, NEUTRAL, sequential, style_for

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_LABELS = 12  # layers in a legend

LayerValues = dict[tuple[str, str], list[float]]  # by client and layer


def layers(records: Sequence[RunRecord], options: Options) -> FigureSpec:
    """Plot in which fraction of the rounds each client sent and received each layer."""
    record = records[0]
    sent = _layer_values(record.method_events.get("layers_up", ()), "changes")
    received = _layer_values(record.method_events.get("layers_down", ()), "gains")
    if not sent and not received:
        raise InputError(f"{record.path} has no record of layers that were sent; the method fedfree writes one")
    rounds = max(1, len(record.rounds))
    clients = sorted({client for client, _ in (*sent, *received)}, key=lambda name: (len(name), name))
    names = list(dict.fromkeys(layer for _, layer in (*sent, *received)))
    names.sort(key=_natural)
    sources: dict[tuple[str, str], dict[str, int]] = {}
    for event in record.method_events.get("layers_down", ()):
        for client, layer, source in zip(event["clients"], event["layers"], event.get("sources", ()), strict=False):
            counts = sources.setdefault((clean(client), clean(layer)), {})
            counts[clean(source)] = counts.get(clean(source), 0) + 1
    rows: list[tuple[Cell, ...]] = []
    for layer in sorted({*sent, *received}, key=lambda pair: (clients.index(pair[0]), names.index(pair[1]))):
        changes, gains, counts = sent.get(layer, []), received.get(layer, []), sources.get(layer, {})
        most_frequent = max(counts, key=lambda name: counts[name]) if counts else None
        rows.append((*layer, len(changes), _mean(changes), len(gains), _mean(gains), most_frequent))

    names_below = max(map(len, names))
    panel = min(3.6, max(0.75, 0.15 * len(clients)))  # inches
    width = min(9.0, max(WIDTH, 1.2 + 0.13 * len(names)))

    def draw(figure: Figure) -> None:
        panels = figure.subplots(2, 1, sharex=True)
        both = [[[len(v.get((c, n), ())) / rounds for n in names] for c in clients] for v in (sent, received)]
        most = max(0.01, max(value for fractions in both for line in fractions for value in line))
        image = None
        for axes, fractions, title in zip(panels, both, ("sent by client", "received by client"), strict=True):
            image = axes.imshow(fractions, vmin=0, vmax=most, cmap=sequential(), aspect="auto", interpolation="none")
            axes.spines[:].set_visible(False)
            axes.tick_params(length=0)
            value_label(axes, title)
            label_positions(axes, clients, axis="y", room=panel)
        label_positions(panels[1], names, axis="x", room=width - 1.3)
        if image is not None:
            bar = figure.colorbar(image, ax=list(panels), label="fraction of rounds", fraction=0.05, pad=0.02)
            bar.outline.set_visible(False)

    caption = f"Fraction of {len(record.rounds)} rounds in which {len(clients)} clients sent and received each layer."
    columns = ("client", "layer", "times sent", "mean change", "times received", "mean gain", "most frequent source")
    height = 2 * panel + 0.9 + 0.06 * min(22, names_below)
    return FigureSpec("Layers sent and received", caption, columns, rows, draw, (width, height))


def _layer_values(events: Iterable[Mapping[str, Any]], value: str) -> LayerValues:
    values: LayerValues = {}
    for event in events:
        for client, layer, number in zip(event["clients"], event["layers"], event[value], strict=True):
            values.setdefault((clean(client), clean(layer)), []).append(float(number))
    return values


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _natural(name: str) -> tuple[tuple[int, str], ...]:
    """Return a key that sorts numbers inside names by value: layer 10 comes after layer 9."""
    parts = name.replace("_", ".").split(".")
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in parts)


def inco(records: Sequence[RunRecord], options: Options) -> FigureSpec:
    """Plot InCo's theta and beta of every layer by round."""
    record = records[0]
    events = record.method_events.get("inco", [])
    if not events:
        raise InputError(f"{record.path} has no record of theta and beta; server_filter: inco writes one")
    rows: list[tuple[Cell, ...]] = []
    for event in events:
        for layer, theta, beta in zip(event["layers"], event["theta"], event["beta"], strict=True):
            rows.append((int(event["round"]), clean(layer), float(theta), float(beta)))
    names = sorted(dict.fromkeys(str(row[1]) for row in rows), key=_natural)

    many = len(names) > MAX_LABELS  # colours do not suffice: paler lines are deeper layers
    labelled = dict(zip(names, distinct_parts(names), strict=True))
    if many:
        labelled = {name: labelled[name] for name in (names[0], names[-1])}

    def draw(figure: Figure) -> None:
        panels = figure.subplots(2, 1, sharex=True)
        for axes, column, label in zip(panels, (2, 3), ("theta", "beta"), strict=True):
            style_axes(axes)
            for index, name in enumerate(names):
                points = [row for row in rows if row[1] == name]
                style = style_for(index)
                axes.plot(
                    [float(row[0] or 0) for row in points],
                    [float(row[column] or 0) for row in points],
                    color=HIGHER if many else style.color,
                    alpha=1 - 0.75 * index / len(names) if many else 1,
                    linestyle="-" if many else style.dashes,
                    marker=None if many else style.marker,
                    markevery=max(1, len(points) // 6),
                    ms=3,
                    lw=1,
                    label=shorten(labelled[name], 40) if column == 2 and name in labelled else None,
                )
            axes.axhline(0, color=NEUTRAL, lw=0.6)
            value_label(axes, label)
        panels[1].set_xlabel("round")
        integer_ticks(panels[1])
        legend(figure)

    recorded = [float(fraction) for event in events for fraction in event.get("positive", ())]
    # a layer has a beta for each of its slices: use the fraction of positive slices if it was recorded
    positive = statistics.fmean(recorded) if recorded else statistics.fmean(float(row[3] or 0) > 0 for row in rows)
    caption = f"{len(names)} layers over {len(events)} rounds; beta is positive in {100 * positive:.0f} % of cases."
    if many:
        caption += " Deeper layers are paler."
    size = (WIDTH, height_with_legend(3.6, list(labelled.values())))
    return FigureSpec("InCo's theta and beta", caption, ("round", "layer", "theta", "beta"), rows, draw, size)
