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
    from polyfed.leaderboard.plan import Plan
    from polyfed.leaderboard.rates import Rates


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
        Path | None,
        typer.Option(help="Folder with UCI HAR as published, for the scenario har-persons.", show_default="none"),
    ] = None,
    tune: Annotated[
        bool,
        typer.Option(
            "--tune",
            help="First choose the learning rate of every method from three values on validation data, and write the "
            "rates to the file of --rates.",
        ),
    ] = False,
    rates: Annotated[
        Path | None,
        typer.Option(
            help="File with the learning rates.", show_default="rates of the package; OUT/rates.json with --tune"
        ),
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
    from polyfed.leaderboard.persons import split_persons
    from polyfed.leaderboard.plan import method_names, plan_scenario
    from polyfed.leaderboard.rates import RATE_KEY, RATES_FILE, read_rates, with_rates
    from polyfed.leaderboard.scenarios import SCENARIOS, find_scenario
    from polyfed.runs.atomic_files import check_file_writable, write_atomically

    chosen = [find_scenario(name) for name in _names(scenario) or SCENARIOS]
    names, chosen_seeds = method_names(_names(methods)), parse_seeds(seeds)
    if jobs is not None and jobs < 1:
        raise InputError(f"--jobs is {jobs}; expected 1 or more")
    if tune and finished:
        raise InputError("--tune starts runs; leave out --finished")
    for path in (page, data, rates if tune else None):
        if path is not None:
            check_file_writable(path)
    if har is None and not finished:
        if scenario is not None and any(one.needs_root for one in chosen):
            raise InputError("the scenario 'har-persons' needs UCI HAR; give its folder with --har")
        chosen = [one for one in chosen if not one.needs_root]
    rates_file = rates or (out / "rates.json" if tune else RATES_FILE)
    known = read_rates(rates_file) if rates_file.exists() or not tune else {}
    root = split_persons(har, out) if har is not None and not finished else None
    plans = [plan_scenario(one, names, root, changes or []) for one in chosen]
    if tune:
        known = _tune(plans, known, out, rates_file, jobs, quiet)
    if not any(change.startswith(RATE_KEY) for change in changes or []):
        plans = [with_rates(plan, known) for plan in plans]
    failed = False if finished else _run([run for plan in plans for run in plan.runs(chosen_seeds, out)], jobs, quiet)
    board = collect(plans, chosen_seeds, out, _command(scenario, methods, seeds))
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


def _tune(plans: list[Plan], known: Rates, out: Path, file: Path, jobs: int | None, quiet: bool) -> Rates:
    """Run what chooses the learning rates, and write them. Rates of other scenarios and methods are kept."""
    from polyfed.leaderboard.rates import choose_rates, rates_text, tuning_runs
    from polyfed.runs.atomic_files import write_atomically

    _run([run for plan in plans for run in tuning_runs(plan, out)], jobs, quiet)
    chosen = {plan.scenario.name: choose_rates(plan, out) for plan in plans}
    rates = {**known, **{name: {**known.get(name, {}), **entries} for name, entries in chosen.items()}}
    write_atomically(file, rates_text(rates).encode())
    print_message(f"learning rates: {file}")
    return rates


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


def _command(scenario: str | None, methods: str | None, seeds: str) -> str:
    """Return the command that repeats the leaderboard, without folders of this machine."""
    from polyfed.leaderboard.scenarios import SCENARIOS

    needs_har = any(SCENARIOS[name].needs_root for name in _names(scenario) or SCENARIOS)
    har = "'UCI HAR Dataset'" if needs_har else None
    options = {"--scenario": scenario, "--methods": methods, "--seeds": seeds, "--har": har}
    return " ".join(["polyfed leaderboard", *(f"{name} {value}" for name, value in options.items() if value)])


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()] if text else []


COMMANDS = {"leaderboard": leaderboard}
