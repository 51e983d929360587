"""`polyfed report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyfed.cli.arguments import BASELINE, GROUP_BY, RUN_FOLDERS
from polyfed.cli.output import print_message, print_text


def report(
    folders: RUN_FOLDERS,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FILE", help="HTML file to write.", show_default="report.html in the first DIR"
        ),
    ] = None,
    by: GROUP_BY = None,
    baseline: BASELINE = "auto",
) -> None:
    """Write a self-contained HTML report for one or more runs.

    The runs may be unfinished.

    Example: polyfed report runs/alphas -o report.html
    """
    from polyfed.runs.atomic_files import check_file_writable

    path = out or folders[0] / "report.html"
    if out is not None or folders[0].is_dir():  # otherwise the report says that there are no runs
        check_file_writable(path)
    from polyfed.report.page import write_report

    count, warnings = write_report(folders, path, by=by or (), baseline=baseline)
    for warning in warnings:
        print_message(warning)
    print_text(f"{path}: a report on {count} run{'s' if count != 1 else ''}")


COMMANDS = {"report": report}
