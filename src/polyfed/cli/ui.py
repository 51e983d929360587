"""`polyfed ui`."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from polyfed.cli.output import print_message, print_text
from polyfed.errors import InputError


def ui(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that holds runs.")] = Path("runs"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any free one.")] = 8321,
    host: Annotated[
        str, typer.Option(help="Who can reach it; beyond this machine, only with the token in the printed address.")
    ] = "127.0.0.1",
) -> None:
    """Look at runs in a browser while they go: list, compare, open, stop."""
    for needed in ("starlette", "uvicorn"):
        if importlib.util.find_spec(needed) is None:
            raise InputError(f"the page needs {needed}, which is not installed: pip install 'polyfed[ui]'")
    from polyfed.ui.server import open_dashboard

    page = open_dashboard(folder, host, port)
    print_text(page.address)
    print_message("Ctrl-C ends the page; runs go on")
    page.serve()


COMMANDS = {"ui": ui}
