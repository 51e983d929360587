"""Every kind of figure by its name, and the function behind `polyfed figure`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from polyfed.errors import InputError, nearest
from polyfed.report import (
    client_figures,
    confusion_figure,
    cost_figures,
    curve_figures,
    method_figures,
    rendering,
    sensitivity_figure,
    tensor_figures,
    trace_figures,
)
from polyfed.report.curve_figures import MEASURES
from polyfed.report.figure_spec import FigureKind, FigureSpec, Options
from polyfed.report.run_record import RunRecord, read_all

KINDS: Mapping[str, FigureKind] = {
    kind.name: kind
    for kind in (
        FigureKind("methods", "final accuracy of methods as bars, with 95 % intervals", method_figures.methods),
        FigureKind("gain", "gain over a baseline (--baseline), with 95 % intervals", method_figures.gain),
        FigureKind("client-gain", "gain of each client over a baseline: heat map", method_figures.gain_by_client),
        FigureKind("curves", "accuracy by round, with a band over seeds", curve_figures.accuracy_curves),
        FigureKind("loss", "training loss by round", curve_figures.loss_curves),
        FigureKind("loss-increase", "training loss above its minimum so far", curve_figures.loss_increase_curves),
        FigureKind(
            "cost",
            "accuracy against bytes or seconds, with the Pareto front",
            cost_figures.accuracy_against_cost,
        ),
        FigureKind("phases", "seconds per round by phase", cost_figures.phases),
        FigureKind(
            "sensitivity", "accuracy against the values of one setting (--by)", sensitivity_figure.sensitivity
        ),
        FigureKind("clients", "accuracy of each client, sorted", client_figures.by_client),
        FigureKind("architectures", "accuracy by architecture, from small to large", client_figures.by_architecture),
        FigureKind("partition", "label distribution of the clients", client_figures.partition, one_run=True),
        FigureKind("confusion", "true and predicted classes: heat map per method", confusion_figure.confusion),
        FigureKind("layers", "FedFree: layers sent and received, by client", trace_figures.layers, one_run=True),
        FigureKind("inco", "InCo: theta and beta by round", trace_figures.inco, one_run=True),
        FigureKind("cka", "similarity of the clients' features", tensor_figures.cka, one_run=True),
        FigureKind("tsne", "FedL2G: guiding vectors in two dimensions", tensor_figures.tsne, one_run=True),
        FigureKind("features", "features of test samples in two dimensions", tensor_figures.features, one_run=True),
        FigureKind("synthetic", "synthetic images of a method", tensor_figures.synthetic, one_run=True),
    )
}


def make(kind: str, records: Sequence[RunRecord], options: Options) -> FigureSpec:
    """Make a figure of some runs. Raise InputError if they do not hold the data that it shows."""
    wanted = KINDS[kind]
    if wanted.one_run and len(records) > 1:
        names = ", ".join(str(record.path) for record in records[:3])
        raise InputError(
            f"a figure '{kind}' shows one run, but there are {len(records)}: {names} ...; name one of them"
        )
    try:
        return wanted.make(records, options)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        names = ", ".join(str(record.path) for record in records[:3])
        raise InputError(
            f"the figure '{kind}' cannot be drawn from {names}: {type(error).__name__}: {error}"
        ) from None


def figure(
    kind: str,
    folders: Iterable[str | Path],
    out: str | Path,
    *,
    options: Options | None = None,
    width: float | None = None,
    height: float | None = None,
) -> tuple[FigureSpec, list[str]]:
    """Draw runs into a file, or write the data if its name ends in .csv.

    Return the figure, and an error message for each broken run.
    """
    path, options = Path(out), options or Options()
    if kind not in KINDS:
        raise InputError(f"there is no figure called '{kind}'; {nearest(kind, KINDS)}")
    suffixes = (*rendering.SUFFIXES, ".csv")
    if path.suffix.lower() not in suffixes:
        raise InputError(f"the figure's file is '{path}'; expected a name that ends in {', '.join(suffixes)}")
    if options.measure not in MEASURES:
        raise InputError(f"--measure is '{options.measure}'; {nearest(options.measure, MEASURES)}")
    if options.against not in ("bytes", "seconds"):
        raise InputError(f"--against is '{options.against}'; {nearest(options.against, ('bytes', 'seconds'))}")
    for name, inches in (("width", width), ("height", height)):
        if inches is not None and not 0.5 <= inches <= 50:
            raise InputError(f"--{name} is {inches:g}; expected inches between 0.5 and 50")
    records, broken = read_all(Path(folder) for folder in folders)
    if not records:
        raise InputError(f"every run is broken: {next(iter(broken.values()))}")
    spec = make(kind, records, options)
    rendering.save_figure(spec, path, width=width, height=height)
    return spec, list(broken.values())
