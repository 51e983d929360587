"""Figures of events that methods record: FedFree's layers and InCo's coefficients."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from polyfed.errors import InputError
from polyfed.report.figure_spec import Cell, FigureSpec, Options, integer_ticks, legend, style_axes, style_for
from polyfed.report.run_record import RunRecord, clean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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

    def draw(figure: Figure) -> None:
        above, below = figure.subplots(2, 1, sharex=True)
        for axes, values, title in ((above, sent, "sent"), (below, received, "received")):
            fractions = [[len(values.get((client, name), ())) / rounds for name in names] for client in clients]
            image = axes.pcolormesh(fractions, vmin=0, vmax=max(0.01, max(map(max, fractions))), rasterized=False)
            axes.set_ylabel(f"client ({title})")
            _ticks(axes, clients, vertical=True)
            axes.invert_yaxis()
            figure.colorbar(image, ax=axes, label="fraction of rounds", fraction=0.06, pad=0.02)
        _ticks(below, names, vertical=False)

    top = max(sent, key=lambda layer: len(sent[layer])) if sent else None
    caption = f"Fraction of {len(record.rounds)} rounds in which {len(clients)} clients sent and received each layer."
    if top is not None:
        caption += f" Sent most often: {top[1]} by client {top[0]}, in {len(sent[top])} rounds."
    total = sum(len(values) for values in received.values())
    gain = _mean([gain for gains in received.values() for gain in gains]) or 0.0
    caption += f" Received in total: {total} layers, with a mean gain of {gain:.3g}."
    columns = ("client", "layer", "times sent", "mean change", "times received", "mean gain", "most frequent source")
    height = min(9.0, 1.6 + 2 * max(0.9, 0.13 * len(clients)))
    return FigureSpec(
        "Layers sent and received", caption, columns, rows, draw, (max(3.6, 1.6 + 0.13 * len(names)), height)
    )


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


def _ticks(axes: Axes, names: Sequence[str], *, vertical: bool) -> None:
    every = max(1, len(names) // 24)
    positions = [index + 0.5 for index in range(0, len(names), every)]
    labels = names[::every]
    if vertical:
        axes.set_yticks(positions, labels, fontsize=6.5)
    else:
        short = [
            name if len(name) <= 22 else f"…{name[-21:]}" for name in labels
        ]  # names of layers differ at their ends
        axes.set_xticks(positions, short, fontsize=6.5, rotation=90)


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
                    color=style.color,
                    linestyle=style.dashes,
                    marker=style.marker,
                    markevery=max(1, len(points) // 6),
                    ms=3,
                    lw=1,
                    label=name if column == 2 and len(names) <= 12 else None,
                )
            axes.axhline(0, color="#808080", lw=0.6)
            axes.set_ylabel(label)
        panels[1].set_xlabel("round")
        integer_ticks(panels[1])
        legend(figure)

    recorded = [float(fraction) for event in events for fraction in event.get("positive", ())]
    # a layer has a beta for each of its slices: use the fraction of positive slices if it was recorded
    positive = statistics.fmean(recorded) if recorded else statistics.fmean(float(row[3] or 0) > 0 for row in rows)
    thetas = [float(row[2] or 0) for row in rows]
    caption = (
        f"Theta and beta of {len(names)} layers over {len(events)} rounds. Theta is between {min(thetas):.3g} and "
        f"{max(thetas):.3g}; beta is positive in {100 * positive:.0f} % of cases."
    )
    height = 4.0 + 0.13 * min(len(names), 12)
    return FigureSpec(
        "InCo's theta and beta", caption, ("round", "layer", "theta", "beta"), rows, draw, (3.6, height)
    )
