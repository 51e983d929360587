"""All commands, as typer knows them."""

from __future__ import annotations

from typing import Annotated

import typer

from polyfed.cli import (
    attack,
    bench,
    check,
    compare,
    figure,
    inspect_command,
    join,
    keys,
    list_command,
    new,
    report,
    run,
    serve,
    sites,
    sweep,
    ui,
)
from polyfed.cli.output import print_text

app = typer.Typer(
    name="polyfed",
    help="Federated learning between parties with different data and different models.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
for _part in (
    run,
    check,
    list_command,
    sweep,
    compare,
    report,
    figure,
    inspect_command,
    attack,
    ui,
    bench,
    serve,
    join,
):
    for _name, _command in _part.COMMANDS.items():
        app.command(_name)(_command)
app.add_typer(new.app, name="new")
app.add_typer(keys.app, name="keys")
app.add_typer(sites.app, name="sites")


def _show_version(wanted: bool) -> None:
    if wanted:
        import polyfed

        print_text(f"polyfed {polyfed.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _start(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print_text(context.get_help())
