"""`polyfed figure`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyfed.cli.arguments import GROUP_BY, RUN_FOLDERS
from polyfed.cli.output import print_message, print_text


def figure(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="Kind of figure. To compare methods: methods, gain, client-gain, curves, loss, loss-increase, cost, "
            "phases, sensitivity, clients, architectures, confusion. Of one run: partition, features, cka, "
            "synthetic, inco, layers, tsne.",
        ),
    ],
    folders: RUN_FOLDERS,
    out: Annotated[
        Path,
        typer.Option("--out", "-o", metavar="FILE", help="File to write: .png, .svg, .pdf, or .csv for the numbers."),
    ],
    measure: Annotated[str, typer.Option(help="Accuracy to show: personal or global.")] = "personal",
    against: Annotated[str, typer.Option(help="Cost axis: bytes or seconds.")] = "bytes",
    by: GROUP_BY = None,
    baseline: Annotated[str, typer.Option(help="Method that gain and client-gain compare with.")] = "local",
    round: Annotated[
        int | None,
        typer.Option(help="Round to show in cka, tsne, features and synthetic.", show_default="the last saved round"),
    ] = None,
    width: Annotated[float | None, typer.Option(help="Width in inches.", show_default="3.6")] = None,
    height: Annotated[float | None, typer.Option(help="Height in inches.", show_default="fits the content")] = None,
) -> None:
    """Draw a figure of one or more runs, for a paper.

    Example: polyfed figure curves runs/alphas -o curves.pdf
    """
    from polyfed.report import Options
    from polyfed.report import figure as draw
    from polyfed.runs.atomic_files import check_file_writable

    check_file_writable(out)
    options = Options(measure, against, tuple(by or ()), round, baseline)
    spec, warnings = draw(kind, folders, out, options=options, width=width, height=height)
    for warning in warnings:
        print_message(warning)
    print_text(f"{out}: {spec.title}. {spec.caption}")


COMMANDS = {"figure": figure}
