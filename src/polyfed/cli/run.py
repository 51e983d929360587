"""`polyfed run` and `polyfed resume`."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyfed.cli.output import put, put_result, say
from polyfed.errors import PolyfedError

if TYPE_CHECKING:
    from polyfed.config import Config
    from polyfed.runs.records import Result

CONFIG = Annotated[str, typer.Argument(metavar="CONFIG", help="A YAML file, or the name of a preset.")]
OVERRIDES = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Keys to change, e.g. method=local train.lr=0.05."),
]
JSON = Annotated[bool, typer.Option("--json", help="Print result.json instead of a table.")]
QUIET = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]


def run(
    config: CONFIG,
    overrides: OVERRIDES = None,
    out: Annotated[Path | None, typer.Option(help="The run folder.", show_default="runs/NAME")] = None,
    json: JSON = False,
    quiet: QUIET = False,
) -> None:
    """Run an experiment. A run that was stopped goes on from its checkpoint; a finished one is shown."""
    from polyfed import api
    from polyfed.config import parse
    from polyfed.config.sources import apply_overrides, read_source

    chosen = parse(apply_overrides(read_source(config), overrides or []), config)
    folder = api.folder_of(chosen, out)
    _go(chosen, folder, json, quiet)


def resume(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run folder.")],
    json: JSON = False,
    quiet: QUIET = False,
) -> None:
    """Go on with a run from its last checkpoint."""
    from polyfed import api
    from polyfed.runs.folder import RunFolder

    _go(api.config_of(RunFolder(folder)), folder, json, quiet)


def _go(config: Config, folder: Path, json: bool, quiet: bool) -> None:
    from polyfed import api
    from polyfed.runs.folder import RunFolder

    result = api.open_folder(folder, config).result()
    if result is not None:
        say(f"{folder} is finished: nothing to do")
    else:
        if RunFolder(folder).exists() and not quiet:
            say(f"{folder} exists: going on from its last checkpoint")
        result = _run(config, folder, quiet)
    put_outcome(result, folder, json)


def put_outcome(result: Result, folder: Path, json: bool) -> None:
    """What a command that ran something ends with."""
    from polyfed.runs.folder import RunFolder

    if result["failures"]:
        first = result["failures"][0]
        say(
            f"{len(result['failures'])} answers of clients were missing or refused, the first of client "
            f"{first['client']} in round {first['round']}: {first['message']}"
        )
    if json:
        put(RunFolder(folder).result_file.read_text())
        return
    put_result(result)
    put(f"Run folder: {folder}")


def _run(config: Config, folder: Path, quiet: bool) -> Result:
    from polyfed.engines import zygote

    if config.engine.name == "pool":
        zygote.start_early()  # it imports torch while this process does
    try:
        from polyfed import api
        from polyfed.cli.progress import Board, Watcher

        with Board(quiet=quiet) as board, crash_recorded(folder):
            watcher = Watcher(board, str(config.method["name"]))
            return api.run_config(config, out=folder, observers=[watcher])
    finally:
        zygote.drop_early()


@contextlib.contextmanager
def crash_recorded(folder: Path) -> Iterator[None]:
    """An error that nobody foresaw leaves its traceback in the run folder, if the run got as far as having one."""
    try:
        yield
    except PolyfedError:
        raise
    except Exception as error:
        from polyfed.runs.folder import RunFolder

        found = RunFolder(folder)
        if found.exists():
            found.event("failed", message=f"{type(error).__name__}: {error}", detail=traceback.format_exc())
        raise


COMMANDS: dict[str, Callable[..., None]] = {"run": run, "resume": resume}
