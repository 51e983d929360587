"""`polyfed report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyfed.cli.output import print_message, print_text


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Run folders, or folders that hold them.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="The page.", show_default="report.html in the first DIR"),
    ] = None,
    by: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY", help="A config key that keeps runs apart; repeatable.", show_default="what differs"
        ),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(metavar="NAME", help="Add differences to this method over common seeds.")
    ] = None,
) -> None:
    """One HTML file about runs, finished or not, that opens without a network."""
    from polyfed.report.page import write_report

    path = out or folders[0] / "report.html"
    count, left_out = write_report(folders, path, by=by or (), baseline=baseline)
    for sentence in left_out:
        print_message(sentence)
    print_text(f"{path}: a report on {count} run{'s' if count != 1 else ''}")


COMMANDS = {"report": report}
