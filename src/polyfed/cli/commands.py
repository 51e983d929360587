"""All commands, as typer knows them."""

from __future__ import annotations

from typing import Annotated

import typer

from polyfed.cli import (
    attacking,
    benching,
    checking,
    comparing,
    creating,
    figuring,
    inspecting,
    joining,
    keying,
    listing,
    reporting,
    running,
    serving,
    siting,
    sweeping,
    watching,
)
from polyfed.cli.show import put

app = typer.Typer(
    name="polyfed",
    help="Federated learning between parties with different data and different models.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
for _part in (
    running,
    checking,
    listing,
    sweeping,
    comparing,
    reporting,
    figuring,
    inspecting,
    attacking,
    watching,
    benching,
    serving,
    joining,
):
    for _name, _command in _part.COMMANDS.items():
        app.command(_name)(_command)
app.add_typer(creating.app, name="new")
app.add_typer(keying.app, name="keys")
app.add_typer(siting.app, name="sites")


def _show_version(wanted: bool) -> None:
    if wanted:
        import polyfed

        put(f"polyfed {polyfed.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _start(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        put(context.get_help())
