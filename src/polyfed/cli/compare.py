"""`polyfed compare`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyfed.cli.output import print_message, print_text

if TYPE_CHECKING:
    from polyfed.comparison import Comparison


def compare(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Run folders, or folders that hold them.")],
    by: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY", help="A config key that keeps runs apart, e.g. data.partition.alpha; repeatable."
        ),
    ] = None,
    format: Annotated[str, typer.Option(help="table, csv, md, latex or html.")] = "table",
    baseline: Annotated[
        str | None, typer.Option(metavar="NAME", help="Add differences to this method over common seeds.")
    ] = None,
) -> None:
    """Mean and deviation over seeds, the best marked."""
    from polyfed import comparison
    from polyfed.errors import InputError, nearest

    if format not in comparison.FORMATS:
        raise InputError(f"--format is '{format}'; {nearest(format, comparison.FORMATS)}")
    print_comparison(comparison.compare(folders, by=by or (), baseline=baseline), format)


def print_comparison(compared: Comparison, format: str) -> None:
    """The table to stdout, what to know about it to stderr."""
    from polyfed.comparison.formats import table

    for note in compared.notes:
        print_message(note)
    print_text(table(compared, bold=True) if format == "table" and sys.stdout.isatty() else compared.to(format))


COMMANDS = {"compare": compare}
