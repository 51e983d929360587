"""`polyfed ui`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyfed.cli.output import print_message, print_text
from polyfed.errors import require


def ui(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that contains run folders.")] = Path("runs"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on. Use 0 to pick a free port.")] = 8321,
    host: Annotated[
        str,
        typer.Option(help="Address to listen on. Other machines need the access token in the printed address."),
    ] = "127.0.0.1",
) -> None:
    """Start a local dashboard to monitor, compare and stop runs.

    Example: polyfed ui runs --port 8321
    """
    require("starlette", "uvicorn", extra="ui", sentence="the dashboard needs")
    from polyfed.ui.server import open_dashboard

    page = open_dashboard(folder, host, port)
    print_text(page.address)
    print_message("press Ctrl-C to stop the dashboard; runs continue")
    page.serve()


COMMANDS = {"ui": ui}
