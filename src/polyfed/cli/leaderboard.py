"""`polyfed leaderboard`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyfed.cli.arguments import QUIET
from polyfed.cli.output import print_message, print_text
from polyfed.errors import InputError

if TYPE_CHECKING:
    from polyfed.config.sweep import SweepRun


def leaderboard(
    scenario: Annotated[
        str | None,
        typer.Option(help="Scenarios, separated by commas.", show_default="all whose data is on this machine"),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(help="Methods to compare with local, separated by commas.", show_default="all methods"),
    ] = None,
    seeds: Annotated[str, typer.Option(help="Random seeds, such as 0,1,2 or 0-4.")] = "0-2",
    out: Annotated[Path, typer.Option(help="Folder for the run folders.")] = Path("runs/leaderboard"),
    har: Annotated[
        Path | None, typer.Option(help="Folder with UCI HAR, for the scenario har-persons.", show_default="none")
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="Number of runs at a time.", show_default="one per core")] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Override a config key in all runs, for a trial. Repeatable."
        ),
    ] = None,
    finished: Annotated[
        bool, typer.Option("--finished", help="Run nothing: use the finished runs, and say which ones are missing.")
    ] = False,
    page: Annotated[
        Path | None, typer.Option(help="Write the page to this Markdown file.", show_default="print it")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Write the data file for `polyfed advise` here.", show_default="not written")
    ] = None,
    quiet: QUIET = False,
) -> None:
    """Compare all methods in four fixed scenarios, and write the tables.

    Finished runs are skipped and unfinished runs are resumed, so you can stop the command and start it again.

    Example: polyfed leaderboard --scenario few-skewed --methods fedproto,fedlatent
    """
    from polyfed.config.sweep import parse_seeds
    from polyfed.leaderboard import page as pages
    from polyfed.leaderboard.measure import collect
    from polyfed.leaderboard.plan import method_names, plan_scenario
    from polyfed.leaderboard.scenarios import SCENARIOS, find_scenario
    from polyfed.runs.atomic_files import check_file_writable, write_atomically

    chosen = [find_scenario(name) for name in _names(scenario) or SCENARIOS]
    names, chosen_seeds = method_names(_names(methods)), parse_seeds(seeds)
    if jobs is not None and jobs < 1:
        raise InputError(f"--jobs is {jobs}; expected 1 or more")
    for path in (page, data):
        if path is not None:
            check_file_writable(path)
    if har is None and not finished:
        if scenario is not None and any(one.needs_root for one in chosen):
            raise InputError("the scenario 'har-persons' needs UCI HAR; give its folder with --har")
        chosen = [one for one in chosen if not one.needs_root]
    plans = [plan_scenario(one, names, har, changes or []) for one in chosen]
    failed = False if finished else _run([run for plan in plans for run in plan.runs(chosen_seeds, out)], jobs, quiet)
    board = collect(plans, chosen_seeds, out, _command(scenario, methods, seeds, har))
    if not board.scenarios:
        raise InputError(f"there is no finished run of the leaderboard in {out}")
    if data is not None:
        write_atomically(data, board.to_json().encode())
    if page is not None:
        write_atomically(page, pages.page(board).encode())
    else:
        print_text("\n\n".join(f"{name}\n\n{pages.table(record)}" for name, record in board.scenarios.items()))
    if failed:
        raise typer.Exit(1)


def _run(runs: list[SweepRun], jobs: int | None, quiet: bool) -> bool:
    """Run what has not finished. Return whether a run failed."""
    from polyfed.cli.sweep import SweepStoppedError, run_all, unfinished_runs

    unfinished = unfinished_runs(runs, force=False)
    if len(unfinished) < len(runs):
        print_message(f"{len(runs) - len(unfinished)} of {len(runs)} runs have finished already")
    if not unfinished:
        return False
    failed, stopped = run_all(unfinished, jobs, quiet, skip_invalid=False)
    for name, message in failed.items():
        print_message(f"{name} failed: {message}")
    if stopped:
        raise SweepStoppedError(f"stopped {len(stopped)} unfinished runs; run the same command again to resume them")
    return bool(failed)


def _command(scenario: str | None, methods: str | None, seeds: str, har: Path | None) -> str:
    """Return the command that repeats the leaderboard, without folders of this machine."""
    options = {"--scenario": scenario, "--methods": methods, "--seeds": seeds, "--har": "FOLDER" if har else None}
    return " ".join(["polyfed leaderboard", *(f"{name} {value}" for name, value in options.items() if value)])


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()] if text else []


COMMANDS = {"leaderboard": leaderboard}
