"""Figures of what methods record: FedFree's layers, and InCo's coefficients."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from polyfed.errors import InputError
from polyfed.report.figure_spec import Cell, Options, Picture, legend, look, plain, whole_rounds
from polyfed.report.run_record import Record, clean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Places = dict[tuple[str, str], list[float]]  # by client and layer


def layers(records: Sequence[Record], options: Options) -> Picture:
    """Which layers a client sent and received, as shares of the rounds."""
    record = records[0]
    sent = _places(record.told.get("layers_up", ()), "changes")
    got = _places(record.told.get("layers_down", ()), "gains")
    if not sent and not got:
        raise InputError(f"{record.path} has no record of layers that were sent; fedfree keeps one")
    rounds = max(1, len(record.rounds))
    clients = sorted({client for client, _ in (*sent, *got)}, key=lambda name: (len(name), name))
    names = list(dict.fromkeys(layer for _, layer in (*sent, *got)))
    names.sort(key=_natural)
    sources: dict[tuple[str, str], dict[str, int]] = {}
    for event in record.told.get("layers_down", ()):
        for client, layer, source in zip(event["clients"], event["layers"], event.get("sources", ()), strict=False):
            of = sources.setdefault((clean(client), clean(layer)), {})
            of[clean(source)] = of.get(clean(source), 0) + 1
    rows: list[tuple[Cell, ...]] = []
    for place in sorted({*sent, *got}, key=lambda p: (clients.index(p[0]), names.index(p[1]))):
        ups, downs, of = sent.get(place, []), got.get(place, []), sources.get(place, {})
        often = max(of, key=lambda name: of[name]) if of else None
        rows.append((*place, len(ups), _mean(ups), len(downs), _mean(downs), often))

    def draw(figure: Figure) -> None:
        above, below = figure.subplots(2, 1, sharex=True)
        for axes, found, title in ((above, sent, "sent"), (below, got, "received")):
            shares = [[len(found.get((client, name), ())) / rounds for name in names] for client in clients]
            image = axes.pcolormesh(shares, vmin=0, vmax=max(0.01, max(map(max, shares))), rasterized=False)
            axes.set_ylabel(f"client ({title})")
            _ticks(axes, clients, vertical=True)
            axes.invert_yaxis()
            figure.colorbar(image, ax=axes, label="share of rounds", fraction=0.06, pad=0.02)
        _ticks(below, names, vertical=False)

    top = max(sent, key=lambda place: len(sent[place])) if sent else None
    words = f"Layers that {len(clients)} clients sent and received in {len(record.rounds)} rounds, as shares of them."
    if top is not None:
        words += f" Sent most often: {top[1]} by client {top[0]}, in {len(sent[top])} rounds."
    total = sum(len(values) for values in got.values())
    gain = _mean([gain for gains in got.values() for gain in gains]) or 0.0
    words += f" Received in all: {total} layers, with a mean gain of {gain:.3g}."
    columns = ("client", "layer", "times sent", "mean change", "times received", "mean gain", "most frequent source")
    height = min(9.0, 1.6 + 2 * max(0.9, 0.13 * len(clients)))
    return Picture(
        "Layers sent and received", words, columns, rows, draw, (max(3.6, 1.6 + 0.13 * len(names)), height)
    )


def _places(events: Iterable[Mapping[str, Any]], value: str) -> Places:
    found: Places = {}
    for event in events:
        for client, layer, number in zip(event["clients"], event["layers"], event[value], strict=True):
            found.setdefault((clean(client), clean(layer)), []).append(float(number))
    return found


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _natural(name: str) -> tuple[tuple[int, str], ...]:
    """Numbers inside names by size: layer 10 comes after layer 9."""
    parts = name.replace("_", ".").split(".")
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in parts)


def _ticks(axes: Axes, names: Sequence[str], *, vertical: bool) -> None:
    every = max(1, len(names) // 24)
    places = [at + 0.5 for at in range(0, len(names), every)]
    labels = [names[at] for at in range(0, len(names), every)]
    if vertical:
        axes.set_yticks(places, labels, fontsize=6.5)
    else:
        short = [name if len(name) <= 22 else f"…{name[-21:]}" for name in labels]  # layers differ at their ends
        axes.set_xticks(places, short, fontsize=6.5, rotation=90)


def inco(records: Sequence[Record], options: Options) -> Picture:
    """InCo's theta and beta of every layer over rounds."""
    record = records[0]
    events = record.told.get("inco", [])
    if not events:
        raise InputError(f"{record.path} has no record of theta and beta; server_filter: inco keeps one")
    rows: list[tuple[Cell, ...]] = []
    for event in events:
        for layer, theta, beta in zip(event["layers"], event["theta"], event["beta"], strict=True):
            rows.append((int(event["round"]), clean(layer), float(theta), float(beta)))
    names = sorted(dict.fromkeys(str(row[1]) for row in rows), key=_natural)

    def draw(figure: Figure) -> None:
        panels = figure.subplots(2, 1, sharex=True)
        for axes, column, label in zip(panels, (2, 3), ("theta", "beta"), strict=True):
            plain(axes)
            for at, name in enumerate(names):
                own = [row for row in rows if row[1] == name]
                style = look(at)
                axes.plot(
                    [float(row[0] or 0) for row in own],
                    [float(row[column] or 0) for row in own],
                    color=style.color,
                    linestyle=style.dashes,
                    marker=style.marker,
                    markevery=max(1, len(own) // 6),
                    ms=3,
                    lw=1,
                    label=name if column == 2 and len(names) <= 12 else None,
                )
            axes.axhline(0, color="#808080", lw=0.6)
            axes.set_ylabel(label)
        panels[1].set_xlabel("round")
        whole_rounds(panels[1])
        legend(figure)

    told = [float(share) for event in events for share in event.get("positive", ())]
    # a layer has a beta for each of its slices; where their shares were recorded, those count rather than the mean
    positive = statistics.fmean(told) if told else statistics.fmean(float(row[3] or 0) > 0 for row in rows)
    thetas = [float(row[2] or 0) for row in rows]
    words = (
        f"Theta and beta of {len(names)} layers over {len(events)} rounds. Theta is between {min(thetas):.3g} and "
        f"{max(thetas):.3g}; beta is positive in {100 * positive:.0f} % of cases."
    )
    height = 4.0 + 0.13 * min(len(names), 12)
    return Picture("InCo's theta and beta", words, ("round", "layer", "theta", "beta"), rows, draw, (3.6, height))
