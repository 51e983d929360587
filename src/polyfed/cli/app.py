"""Entry point of the command `polyfed`: run a command and turn errors into messages and exit codes."""

from __future__ import annotations

import atexit
import gc
import os
import sys

from polyfed.errors import PolyfedError

USAGE, FAILED, STOPPED = 2, 1, 130


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code. An error is one sentence on stderr."""
    from polyfed.cli.output import print_message

    atexit.register(gc.freeze)  # otherwise the interpreter searches torch's objects for garbage before it ends
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
        # the reader of our output has closed the pipe; without this, Python fails again when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        if os.environ.get("POLYFED_DEBUG") == "1":
            import traceback

            sys.stderr.write(traceback.format_exc())
        print_message(
            f"polyfed: unexpected {type(error).__name__}: {error} (set POLYFED_DEBUG=1 to see the traceback; a run "
            "that had started records it in its events.jsonl)"
        )
        return FAILED


def _run(arguments: list[str] | None) -> int:
    """Run a command and return its exit code. Print a wrong command line as one sentence."""
    import click

    from polyfed.cli.commands import build_command
    from polyfed.cli.output import print_message, print_text

    try:
        # outside of a run, typer turns Ctrl-C into the usual exit code
        code = build_command().main(arguments, prog_name="polyfed", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        print_text(error.format_message())
        return USAGE
    except click.Abort:
        return STOPPED
    except click.ClickException as error:
        from polyfed.cli.usage_errors import usage_message

        print_message(usage_message(error, sys.argv[1:] if arguments is None else arguments))
        return USAGE


if __name__ == "__main__":
    sys.exit(main())
