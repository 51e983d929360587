"""`polyfed ui`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyfed.cli.output import print_message, print_text
from polyfed.errors import InputError, require


def ui(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that contains run folders.")] = Path("runs"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on. Use 0 to pick a free port.")] = 8321,
    host: Annotated[
        str,
        typer.Option(help="Address to listen on. Other machines need the access token in the printed address."),
    ] = "127.0.0.1",
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Neither start nor stop runs from the page.")
    ] = False,
    allow_start: Annotated[
        bool,
        typer.Option("--allow-start", help="Allow the page to start runs although other machines can open it."),
    ] = False,
) -> None:
    """Start a local dashboard to start, monitor, compare and stop runs.

    Example: polyfed ui runs --port 8321
    """
    if read_only and allow_start:
        raise InputError("--read-only and --allow-start exclude each other; give one of them")
    require("starlette", "uvicorn", extra="ui", sentence="the dashboard needs")
    from polyfed.ui.server import open_dashboard

    page = open_dashboard(folder, host, port, read_only=read_only, allow_start=allow_start)
    print_text(page.address)
    print_message("press Ctrl-C to stop the dashboard; runs continue")
    page.serve()


COMMANDS = {"ui": ui}
