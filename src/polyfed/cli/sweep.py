"""`polyfed sweep`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyfed.cli.arguments import CONFIG, QUIET, TRUST
from polyfed.cli.output import print_message, print_text
from polyfed.errors import InputError, PolyfedError
from polyfed.machine import available_cores

if TYPE_CHECKING:
    from polyfed.config.sweep import SweepRun


class SweepStoppedError(PolyfedError):
    """The user stopped a sweep. Its runs can be resumed from their checkpoints."""

    exit_code = 130


def sweep(
    config: CONFIG,
    axes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=V1,V2]...",
            help="The axes of the grid: config keys with comma-separated values.",
        ),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="Random seeds, such as 0,1,2 or 0-4.", show_default="the config's seed")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the run folders.", show_default="runs/CONFIG-sweep")
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="Number of runs at a time.", show_default="one per core")] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Run again what was run with other settings or code. Old folders are kept."),
    ] = False,
    skip_invalid: Annotated[
        bool,
        typer.Option("--skip-invalid", help="Leave out settings that cannot run. Otherwise they stop the sweep."),
    ] = False,
    table: Annotated[bool, typer.Option("--table/--no-table", help="Print the comparison of all runs.")] = True,
    trust: TRUST = False,
    quiet: QUIET = False,
) -> None:
    """Run a grid of settings and seeds, and compare the results.

    All settings are checked before the first run starts. Finished runs are skipped and unfinished runs are resumed,
    so you can stop a sweep and start it again.

    Example: polyfed sweep quickstart method=local,fedproto train.lr=0.01,0.1 --seeds 0-2
    """
    from polyfed.config.loading import read_source, short_name
    from polyfed.config.sweep import parse_seeds, plan_sweep
    from polyfed.config.trust import check_source_trusted

    if jobs is not None and jobs < 1:
        raise InputError(f"--jobs is {jobs}; expected 1 or more")
    raw = read_source(config)
    chosen_seeds = parse_seeds(seeds) if seeds is not None else [raw.get("seed", 0)]
    folder = out or Path("runs") / f"{short_name(config)}-sweep"
    runs = plan_sweep(raw, axes or [], chosen_seeds, folder)
    for run in runs:
        check_source_trusted(run.config, config, trust=trust)
    unfinished = unfinished_runs(runs, force)
    if len(unfinished) < len(runs):
        print_message(f"{len(runs) - len(unfinished)} of {len(runs)} runs have finished already")
    failed, stopped = run_all(unfinished, jobs, quiet, skip_invalid) if unfinished else ({}, {})
    for name, message in failed.items():
        print_message(f"{name} failed: {message}")
    if stopped:
        raise SweepStoppedError(f"stopped {len(stopped)} unfinished runs; run the same command again to resume them")
    if table and len(failed) < len(runs):
        _print_comparison(runs, axes or [])
    print_text(f"Run folders: {folder}")
    if failed:
        raise typer.Exit(1)


def unfinished_runs(runs: list[SweepRun], force: bool) -> list[SweepRun]:
    """Return the runs that have not finished. With `force`, those with other settings or code are run again."""
    from polyfed import api

    unfinished = []
    for run in runs:
        try:
            if api.open_run(run.config, run.folder).result is None:
                unfinished.append(run)
        except api.ChangedRunError:
            if not force:
                raise
            unfinished.append(dataclasses.replace(run, force=True))
    return unfinished


def run_all(
    runs: list[SweepRun], jobs: int | None, quiet: bool, skip_invalid: bool
) -> tuple[dict[str, str], dict[str, str]]:
    """Check and run the runs of a sweep. Return the failed and the stopped ones, with a message each."""
    from polyfed.cli.sweep_workers import SweepWorkers
    from polyfed.progress import ProgressBoard

    runs, count = allocate_cores(runs, jobs)
    with ProgressBoard(quiet=quiet, every_round=False) as board:
        workers = SweepWorkers(runs, count, board)
        settings: dict[str, list[SweepRun]] = {}  # the runs of every setting, one per seed
        for run in runs:
            settings.setdefault(_without_seed(run), []).append(run)
        invalid = workers.check_all([members[0] for members in settings.values()])
        if workers.interrupted:
            workers.close()
            raise SweepStoppedError("stopped before the first run")
        if invalid and (not skip_invalid or len(invalid) == len(settings)):
            workers.close()
            raise InputError(_refusal(invalid, len(settings)))
        for name, message in invalid.items():
            board.note(f"{name} is left out: {message}")
        left_out = [run.name for members in settings.values() if members[0].name in invalid for run in members]
        workers.leave_out(left_out)
        board.note(f"{len(runs) - len(left_out)} runs, {count} at a time")
        outcomes = workers.run_all()
    return outcomes.failed, outcomes.stopped


def _without_seed(run: SweepRun) -> str:
    return run.config.model_copy(update={"seed": 0}).hash()


def _refusal(invalid: dict[str, str], settings: int) -> str:
    name, message = next(iter(invalid.items()))
    count = f"{len(invalid)} of {settings} settings cannot run, so nothing was started; " if settings > 1 else ""
    advice = "; to run the others, add --skip-invalid" if len(invalid) < settings else ""
    return f"{count}{name}: {message.rstrip('.')}{advice}"


def allocate_cores(runs: list[SweepRun], jobs: int | None, cores: int | None = None) -> tuple[list[SweepRun], int]:
    """Choose how many runs are active at a time and how many workers each has, so that all cores are busy once.

    Many runs with one core each are faster than one run after the other with all cores: a run in one process has no
    pool to start and never waits for its slowest client. Results do not depend on it. Engine settings of the config
    are not changed.
    """
    cores = cores or available_cores()
    engine = runs[0].config.engine
    if engine.name == "serial":
        return runs, jobs or min(cores, len(runs))
    if engine.name == "ray":
        return runs, jobs or 1  # its workers belong to the cluster
    if engine.workers != "auto":
        return runs, jobs or max(1, min(cores // engine.workers, len(runs)))
    count = min(jobs or cores, len(runs))
    workers = max(1, cores // count)
    settings: dict[str, Any] = {"name": "serial"} if workers == 1 else {"workers": workers}
    allocated = [
        dataclasses.replace(
            run,
            config=run.config.model_copy(update={"engine": run.config.engine.model_copy(update=settings)}),
        )
        for run in runs
    ]
    return allocated, count


def _print_comparison(runs: list[SweepRun], axes: list[str]) -> None:
    from polyfed.cli.compare import print_comparison
    from polyfed.comparison import compare
    from polyfed.config.sweep import split_values

    keys = [key for key, _, values in (axis.partition("=") for axis in axes) if len(split_values(values)) > 1]
    folders = [run.folder for run in runs if (run.folder / "result.json").exists()]
    print_comparison(compare(folders, by=[key for key in keys if key not in {"method", "method.name"}]), "table")


COMMANDS = {"sweep": sweep}
