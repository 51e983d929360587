"""Command-line arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

CONFIG = Annotated[
    str, typer.Argument(metavar="CONFIG", help="A YAML file, or the name of a preset (see `polyfed list presets`).")
]
OVERRIDES = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Config keys to override, such as method=local train.lr=0.05."),
]
RUN_FOLDERS = Annotated[
    list[Path], typer.Argument(metavar="DIR...", help="Run folders, or folders that contain run folders.")
]
GROUP_BY = Annotated[
    list[str] | None,
    typer.Option("--by", metavar="KEY", help="Config key to group runs by, besides the method. Repeatable."),
]
BASELINE = Annotated[
    str,
    typer.Option(
        "--baseline",
        metavar="NAME",
        help="Method to compare with, by paired differences over seeds; none: no method.",
        show_default="local, if it is among the runs",
    ),
]
JSON = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
QUIET = Annotated[bool, typer.Option("--quiet", "-q", help="Do not show progress.")]
TRUST = Annotated[
    bool,
    typer.Option(
        "--trust", help="Import the code that a run folder, config or exported model of another user names."
    ),
]
FORCE = Annotated[
    bool,
    typer.Option("--force", help="Run again. An existing run folder is kept as NAME.old-1, NAME.old-2 and so on."),
]
