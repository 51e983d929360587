"""`polyfed compare`."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from polyfed.cli.arguments import BASELINE, GROUP_BY, JSON, RUN_FOLDERS
from polyfed.cli.output import print_message, print_text

if TYPE_CHECKING:
    from polyfed.comparison import Comparison


def compare(
    folders: RUN_FOLDERS,
    by: GROUP_BY = None,
    format: Annotated[str, typer.Option(help="Output format: table, csv, md, latex, html or json.")] = "table",
    baseline: BASELINE = "auto",
    metric: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Metric to compare instead of accuracy, such as auroc or worst_decile."),
    ] = None,
    json: JSON = False,
) -> None:
    """Compare runs: mean and standard deviation over seeds, best value highlighted.

    Runs with different settings are never averaged: they get rows of their own.

    Example: polyfed compare runs/alphas --by data.partition.alpha --format latex
    """
    from polyfed import comparison
    from polyfed.errors import InputError, nearest

    if json:
        format = "json"
    if format not in comparison.FORMATS:
        raise InputError(f"--format is '{format}'; {nearest(format, comparison.FORMATS)}")
    print_comparison(comparison.compare(folders, by=by or (), baseline=baseline, metric=metric), format)


def print_comparison(compared: Comparison, format: str) -> None:
    """Print a comparison to stdout and its notes to stderr."""
    from polyfed.comparison.conclusion import conclusion
    from polyfed.comparison.text_table import text_table

    for note in compared.notes:
        print_message(note)
    if format == "table":
        columns = shutil.get_terminal_size().columns  # 80 if the output is not a terminal
        print_text(text_table(compared, width=columns, bold=sys.stdout.isatty()))
    else:
        print_text(compared.to(format))
    sentence = conclusion(compared) if format == "table" else None
    if sentence is not None:
        print_message(sentence)


COMMANDS = {"compare": compare}
