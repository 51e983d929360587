"""Every kind of figure by its name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from polyfed.errors import InputError, nearest
from polyfed.report import client_figures, cost_figures, curve_figures, rendering, tensor_figures, trace_figures
from polyfed.report.curve_figures import MEASURES
from polyfed.report.figure_spec import Kind, Options, Picture
from polyfed.report.run_record import Record, read_all

KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("curves", "accuracy by round, with a band over seeds", curve_figures.accuracy_curves),
        Kind("loss", "training loss by round", curve_figures.loss_curves),
        Kind("loss-increase", "training loss above its lowest so far", curve_figures.loss_increase),
        Kind(
            "cost",
            "accuracy against bytes or seconds, with the front that nobody beats",
            cost_figures.accuracy_against_cost,
        ),
        Kind("phases", "seconds a round by what they are spent on", cost_figures.phases),
        Kind("sensitivity", "accuracy against the values of one setting (--by)", cost_figures.sensitivity),
        Kind("clients", "accuracy of each client, sorted", client_figures.by_client),
        Kind("architectures", "accuracy by architecture, from small to large", client_figures.by_architecture),
        Kind("partition", "which client holds how much of which class", client_figures.partition, one_run=True),
        Kind("layers", "FedFree's layers, by client", trace_figures.layers, one_run=True),
        Kind("inco", "InCo's theta and beta by round", trace_figures.inco, one_run=True),
        Kind("cka", "similarity of the clients' features", tensor_figures.cka, one_run=True),
        Kind("tsne", "guiding vectors in two dimensions", tensor_figures.tsne, one_run=True),
        Kind("features", "features of test samples in two dimensions", tensor_figures.features, one_run=True),
        Kind("synthetic", "images that a method made up", tensor_figures.synthetic, one_run=True),
    )
}


def make(kind: str, records: Sequence[Record], options: Options) -> Picture:
    """A picture of some runs; what they do not hold is said in one sentence."""
    wanted = KINDS[kind]
    if wanted.one_run and len(records) > 1:
        names = ", ".join(str(record.path) for record in records[:3])
        raise InputError(
            f"a figure '{kind}' shows one run, but there are {len(records)}: {names} ...; name one of them"
        )
    try:
        return wanted.make(records, options)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        found = ", ".join(str(record.path) for record in records[:3])
        raise InputError(
            f"{found} holds what a figure '{kind}' cannot be drawn from: {type(error).__name__}: {error}"
        ) from None


def figure(
    kind: str,
    folders: Iterable[str | Path],
    out: str | Path,
    *,
    options: Options | None = None,
    width: float | None = None,
    height: float | None = None,
) -> tuple[Picture, list[str]]:
    """Draw runs into a file, or write the numbers where it ends in .csv; gives the picture, and what was left out."""
    path, options = Path(out), options or Options()
    if kind not in KINDS:
        raise InputError(f"there is no figure called '{kind}'; {nearest(kind, KINDS)}")
    known = (*rendering.SUFFIXES, ".csv")
    if path.suffix.lower() not in known:
        raise InputError(f"the figure's file is '{path}'; expected a name that ends in {', '.join(known)}")
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
    picture = make(kind, records, options)
    rendering.write(picture, path, width=width, height=height)
    return picture, list(broken.values())
