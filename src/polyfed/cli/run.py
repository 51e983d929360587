"""`polyfed run` and `polyfed resume`."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyfed.cli.arguments import CONFIG, FORCE, JSON, OVERRIDES, QUIET, TRUST
from polyfed.cli.output import print_message, print_result, print_text
from polyfed.errors import PolyfedError

if TYPE_CHECKING:
    from polyfed.api import OpenedRun
    from polyfed.config import Config
    from polyfed.runs.records import Result


def run(
    config: CONFIG,
    overrides: OVERRIDES = None,
    out: Annotated[Path | None, typer.Option(help="The run folder.", show_default="runs/NAME")] = None,
    force: FORCE = False,
    profile: Annotated[
        bool,
        typer.Option(
            "--profile", help="Print where the time went, and write profile.json, a trace for ui.perfetto.dev."
        ),
    ] = False,
    trust: TRUST = False,
    json: JSON = False,
    quiet: QUIET = False,
) -> None:
    """Run an experiment. If the run folder already exists, resume from its last checkpoint, or print the result if
    the run has finished. If it was made with other settings or other code, stop with a message.

    Example: polyfed run quickstart method=fedproto rounds=20
    """
    from polyfed import api
    from polyfed.config import load_config
    from polyfed.config.early_checks import check_names
    from polyfed.config.trust import check_source_trusted
    from polyfed.profiling import profiled

    with profiled(profile, _print_lines if json else print_text):
        parsed = load_config(config, overrides or [])
        check_source_trusted(parsed, config, trust=trust)
        with _workers_in_advance(parsed):
            check_names(parsed)
            _run_and_print(api.open_run(parsed, out, force=force), json, quiet)


def resume(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The run folder.")],
    trust: TRUST = False,
    json: JSON = False,
    quiet: QUIET = False,
) -> None:
    """Resume a run from its last checkpoint.

    Example: polyfed resume runs/my-run
    """
    from polyfed import api

    opened = api.open_existing_run(folder, trust=trust)
    with _workers_in_advance(opened.config):
        _run_and_print(opened, json, quiet)


@contextlib.contextmanager
def _workers_in_advance(config: Config) -> Iterator[None]:
    """Start the process of the pool's workers early: it imports torch while this process checks the run."""
    from polyfed.engines import fork_server

    if config.engine.name == "pool" and config.engine.start != "spawn" and sys.platform == "linux":
        fork_server.start_spare()
    try:
        yield
    finally:
        fork_server.close_spare()


def _run_and_print(opened: OpenedRun, json: bool, quiet: bool) -> None:
    folder, result = opened.folder, opened.result
    if result is not None:
        print_message(f"{folder.path} has finished: nothing to do")
    else:
        if opened.exists and not quiet:
            print_message(f"{folder.path} exists: resuming from its last checkpoint")
        result = _run(opened, quiet)
    print_outcome(result, folder.path, json)


def print_outcome(result: Result, folder: Path, json: bool) -> None:
    """Print the result of a finished run, how many replies of clients failed, and whether noise is too strong."""
    from polyfed.runs.folder import RunFolder
    from polyfed.runs.noise_level import noise_messages
    from polyfed.runs.records import failure_summary

    if result["failures"]:
        print_message(failure_summary(result))
    for message in noise_messages(result):
        print_message(message)
    if json:
        print_text(RunFolder(folder).result_file.read_text())
        return
    print_result(result)
    print_text(f"Run folder: {folder}")


def _print_lines(text: str) -> None:
    """Print a text of several lines to stderr."""
    for line in text.splitlines():
        print_message(line)


def _run(opened: OpenedRun, quiet: bool) -> Result:
    from polyfed import api
    from polyfed.progress import ProgressBoard, ProgressObserver

    with ProgressBoard(quiet=quiet) as board, record_crash(opened.folder.path):
        observer = ProgressObserver(board, str(opened.config.method["name"]))
        return api.execute(opened, observers=[observer], own_process=True)


@contextlib.contextmanager
def record_crash(folder: Path) -> Iterator[None]:
    """Record the traceback of an unexpected error in the events of the run folder, if the folder exists."""
    try:
        yield
    except PolyfedError:
        raise
    except Exception as error:
        from polyfed.runs.folder import RunFolder

        run_folder = RunFolder(folder)
        if run_folder.exists():
            run_folder.event("failed", message=f"{type(error).__name__}: {error}", detail=traceback.format_exc())
        raise


COMMANDS: dict[str, Callable[..., None]] = {"run": run, "resume": resume}
