"""`polyfed figure`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyfed.cli.output import print_message, print_text


def figure(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="curves, loss, loss-increase, cost, phases, sensitivity, clients, architectures, partition, layers, "
            "inco, cka, tsne, features or synthetic.",
        ),
    ],
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Run folders, or folders that hold them.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="Ends in .png, .svg, .pdf, or .csv for the numbers.")
    ],
    measure: Annotated[str, typer.Option(help="Which accuracy: personal or global.")] = "personal",
    against: Annotated[str, typer.Option(help="Which cost: bytes or seconds.")] = "bytes",
    by: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="A config key that keeps runs apart; repeatable.")
    ] = None,
    round: Annotated[
        int | None,
        typer.Option(help="For cka, tsne, features and synthetic: which round.", show_default="the last kept"),
    ] = None,
    width: Annotated[float | None, typer.Option(help="In inches.", show_default="3.6")] = None,
    height: Annotated[float | None, typer.Option(help="In inches.", show_default="as it needs")] = None,
) -> None:
    """Draw a figure of one run or many, ready for a paper."""
    from polyfed import report

    options = report.Options(measure, against, tuple(by or ()), round)
    spec, left_out = report.figure(kind, folders, out, options=options, width=width, height=height)
    for sentence in left_out:
        print_message(sentence)
    print_text(f"{out}: {spec.title}. {spec.caption}")


COMMANDS = {"figure": figure}
