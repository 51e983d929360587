"""`polyfed sweep`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyfed.cli.output import put, say
from polyfed.cli.run import CONFIG, QUIET
from polyfed.errors import InputError, PolyfedError
from polyfed.machine import available_cores

if TYPE_CHECKING:
    from polyfed.config.sweep import SweepRun


class SweepStoppedError(PolyfedError):
    """The user stopped a sweep; the checkpoints of its runs are whole."""

    exit_code = 130


def sweep(
    config: CONFIG,
    axes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=V1,V2]...", help="The grid, e.g. method=local,fedproto train.lr=0.01,0.1."),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="Seeds of each cell, e.g. 0,1,2.", show_default="the config's")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder for the runs.", show_default="runs/CONFIG-sweep")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(help="Runs at a time.", show_default="as many as there are cores")
    ] = None,
    quiet: QUIET = False,
) -> None:
    """Run a grid of settings times seeds. What is done is skipped, so a sweep can be stopped and started."""
    from polyfed import api
    from polyfed.config.sources import read_source
    from polyfed.config.sweep import parse_seeds, plan_sweep

    if jobs is not None and jobs < 1:
        raise InputError(f"--jobs is {jobs}; expected 1 or more")
    raw = read_source(config)
    chosen = parse_seeds(seeds) if seeds is not None else [raw.get("seed", 0)]
    where = out or Path("runs") / f"{Path(config).stem}-sweep"
    cells = plan_sweep(raw, axes or [], chosen, where)
    todo = [cell for cell in cells if api.open_run(cell.config, cell.folder).result is None]
    if len(todo) < len(cells):
        say(f"{len(cells) - len(todo)} of {len(cells)} runs are finished already")
    failed, stopped = _work(todo, jobs, quiet) if todo else ({}, {})
    for name, message in failed.items():
        say(f"{name} failed: {message}")
    if stopped:
        raise SweepStoppedError(f"stopped with {len(stopped)} runs under way; the same command goes on with them")
    if len(failed) < len(cells):
        _put_comparison(cells, raw, axes or [])
    put(f"Run folders: {where}")
    if failed:
        raise typer.Exit(1)


def _work(cells: list[SweepRun], jobs: int | None, quiet: bool) -> tuple[dict[str, str], dict[str, str]]:
    from polyfed.cli.progress import Board
    from polyfed.cli.sweep_workers import Crew

    shared, count = share_out(cells, jobs)
    with Board(quiet=quiet, every_round=False) as board:
        board.note(f"{len(cells)} runs, {count} at a time")
        outcomes = Crew(shared, count, board).work()
    return outcomes.failed, outcomes.stopped


def share_out(cells: list[SweepRun], jobs: int | None, cores: int | None = None) -> tuple[list[SweepRun], int]:
    """The cells with engines that together use the machine once, and how many run at a time.

    A run in one process has no start-up of a pool and never waits for its slowest client, so many runs at a time
    with a core each are faster than one after the other with all cores; results do not depend on it. An engine that
    the config sets is left as it is.
    """
    import dataclasses

    cores = cores or available_cores()
    engine = cells[0].config.engine
    if engine.name == "serial":
        return cells, jobs or min(cores, len(cells))
    if engine.name == "ray":
        return cells, jobs or 1  # its workers are the cluster's
    if engine.workers != "auto":
        return cells, jobs or max(1, min(cores // engine.workers, len(cells)))
    count = min(jobs or cores, len(cells))
    workers = max(1, cores // count)
    settings: dict[str, Any] = {"name": "serial"} if workers == 1 else {"workers": workers}
    shared = [
        dataclasses.replace(
            cell,
            config=cell.config.model_copy(update={"engine": cell.config.engine.model_copy(update=settings)}),
        )
        for cell in cells
    ]
    return shared, count


def _put_comparison(cells: list[SweepRun], raw: Any, axes: list[str]) -> None:
    from polyfed.cli.compare import put_comparison
    from polyfed.comparison import compare
    from polyfed.config.sweep import split_values

    keys = [key for key, _, values in (axis.partition("=") for axis in axes) if len(split_values(values)) > 1]
    folders = [cell.folder for cell in cells if (cell.folder / "result.json").exists()]
    put_comparison(compare(folders, by=[key for key in keys if key not in {"method", "method.name"}]), "table")


COMMANDS = {"sweep": sweep}
