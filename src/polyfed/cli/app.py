"""The command `polyfed`: its parts, and how errors end it."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Annotated

import click
import typer

from polyfed.cli import benching, checking, comparing, creating, listing, running, sweeping
from polyfed.cli.show import put, say
from polyfed.errors import PolyfedError

USAGE, FAILED, STOPPED = 2, 1, 130

app = typer.Typer(
    name="polyfed",
    help="Federated learning between parties with different data and different models.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
for _part in (running, checking, listing, sweeping, comparing, benching):
    for _name, _command in _part.COMMANDS.items():
        app.command(_name)(_command)
app.add_typer(creating.app, name="new")


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


def main(arguments: list[str] | None = None) -> int:
    """Run a command; gives its exit code. Errors are one sentence on stderr."""
    try:
        code = typer.main.get_command(app).main(arguments, prog_name="polyfed", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except PolyfedError as error:
        say(f"polyfed: {error}")
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        put(error.format_message())
        return USAGE
    except click.ClickException as error:
        where = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "polyfed"
        say(f"{where}: {error.format_message()}")
        return USAGE
    except (KeyboardInterrupt, click.Abort):
        say("polyfed: stopped")
        return STOPPED
    except BrokenPipeError:
        # whoever read our output has gone; without this, Python complains once more when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        if os.environ.get("POLYFED_DEBUG") == "1":
            sys.stderr.write(traceback.format_exc())
        say(
            f"polyfed: failed unexpectedly with {type(error).__name__}: {error} (POLYFED_DEBUG=1 shows where; a run "
            "that had begun has it in its events.jsonl)"
        )
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
