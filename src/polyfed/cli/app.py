"""The command `polyfed`, and how errors end it."""

from __future__ import annotations

import os
import sys

from polyfed.errors import PolyfedError

USAGE, FAILED, STOPPED = 2, 1, 130


def main(arguments: list[str] | None = None) -> int:
    """Run a command; gives its exit code. Errors are one sentence on stderr."""
    from polyfed.cli.output import print_message

    try:
        code = _run(arguments)
        sys.stdout.flush()
        if code == STOPPED:
            print_message("polyfed: stopped")
        return code
    except PolyfedError as error:
        print_message(f"polyfed: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        print_message("polyfed: stopped")
        return STOPPED
    except BrokenPipeError:
        # whoever read our output has gone; without this, Python complains once more when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        if os.environ.get("POLYFED_DEBUG") == "1":
            import traceback

            sys.stderr.write(traceback.format_exc())
        print_message(
            f"polyfed: failed unexpectedly with {type(error).__name__}: {error} (POLYFED_DEBUG=1 shows where; a run "
            "that had begun has it in its events.jsonl)"
        )
        return FAILED


def _run(arguments: list[str] | None) -> int:
    """The exit code of a command; a wrong command line is one sentence too."""
    import click
    import typer

    from polyfed.cli.commands import app
    from polyfed.cli.output import print_message, print_text

    try:
        # typer turns Ctrl-C outside of a run into the code that shells give it
        code = typer.main.get_command(app).main(arguments, prog_name="polyfed", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        print_text(error.format_message())
        return USAGE
    except click.Abort:
        return STOPPED
    except click.ClickException as error:
        where = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "polyfed"
        print_message(f"{where}: {error.format_message()}")
        return USAGE


if __name__ == "__main__":
    sys.exit(main())
