"""The typer application with all commands."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Annotated, get_type_hints

import click
import typer

from polyfed.cli import (
    advise,
    attack,
    bench,
    check,
    compare,
    export,
    figure,
    inspect_command,
    join,
    keys,
    leaderboard,
    list_command,
    new,
    report,
    reproduce,
    run,
    serve,
    sites,
    sweep,
    ui,
)
from polyfed.cli.output import print_text

app = typer.Typer(
    name="polyfed",
    help="Run federated learning between clients with different data and different models.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
for _module in (
    run,
    check,
    advise,
    list_command,
    sweep,
    compare,
    leaderboard,
    reproduce,
    report,
    figure,
    inspect_command,
    export,
    attack,
    ui,
    bench,
    serve,
    join,
):
    for _name, _command in _module.COMMANDS.items():
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
        bool, typer.Option("--version", help="Print the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print_text(context.get_help())


@cache
def build_command() -> click.Command:
    """Return the click command of the application, built once per process."""
    command = typer.main.get_command(app)
    _restore_argument_help(command)
    _reflow_help(command)
    return command


def _reflow_help(command: click.Command) -> None:
    """Join the lines of every paragraph of the help: typer keeps the line breaks of docstrings."""
    for subcommand in getattr(command, "commands", {}).values():
        _reflow_help(subcommand)
    if command.help:
        paragraphs = inspect.cleandoc(command.help).split("\n\n")
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _restore_argument_help(command: click.Command) -> None:
    """Set the help of arguments, which typer loses with click 8.5: both define the attribute `help`."""
    for subcommand in getattr(command, "commands", {}).values():
        _restore_argument_help(subcommand)
    missing = [parameter for parameter in command.params if getattr(parameter, "help", "") is None]
    if missing and command.callback is not None:
        hints = get_type_hints(inspect.unwrap(command.callback), include_extras=True)
        for parameter in missing:
            info = next(iter(getattr(hints.get(str(parameter.name)), "__metadata__", ())), None)
            parameter.help = getattr(info, "help", None)
