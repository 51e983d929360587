"""`polyfed reproduce`: run the tables of a paper, and evaluate its claims."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyfed.cli.arguments import QUIET
from polyfed.cli.output import print_json, print_message, print_text
from polyfed.errors import InputError, nearest

if TYPE_CHECKING:
    from polyfed.papers import GridRun, Paper, Scale

MANY_SETTINGS = 20  # checking more takes so long that a message says so
TFLOPS = 30.0  # assumed for published settings if neither --tflops nor a measurement of this machine is there


def reproduce(
    paper: Annotated[str, typer.Argument(metavar="PAPER", help="Name of a paper, such as fedvtc.")],
    table: Annotated[
        str | None, typer.Argument(metavar="[TABLE]", help="One table, such as table1.", show_default="all tables")
    ] = None,
    scale: Annotated[
        str, typer.Option(help="Size of the settings: cpu (small, of the same structure) or paper (as published).")
    ] = "cpu",
    seeds: Annotated[str, typer.Option(help="Random seeds, such as 0,1,2 or 0-4.")] = "0-2",
    out: Annotated[Path, typer.Option(help="Folder for the run folders, in PAPER/SCALE.")] = Path("runs/reproduce"),
    jobs: Annotated[int | None, typer.Option(help="Number of runs at a time.", show_default="one per core")] = None,
    root: Annotated[
        Path | None,
        typer.Option(
            help="Folder with the datasets, one subfolder each.", show_default="installed packages or the hub"
        ),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Override a config key in all runs, for a trial. Repeatable."
        ),
    ] = None,
    format: Annotated[str, typer.Option("--format", help="Output: table, md or json.")] = "table",
    page: Annotated[
        Path | None,
        typer.Option(help="Also write a page in Markdown, which starts with the text of NAME.notes.md next to it."),
    ] = None,
    finished: Annotated[
        bool, typer.Option("--finished", help="Run nothing: use the finished runs, and say which ones are missing.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Run nothing: check all settings and estimate the hours. Needs no data.")
    ] = False,
    tflops: Annotated[
        float | None,
        typer.Option(
            help="TFLOPS that your device reaches in training, to estimate the hours.",
            show_default="as measured by `polyfed bench device`; 30 for published settings",
        ),
    ] = None,
    rows: Annotated[
        str | None,
        typer.Option(
            "--rows",
            metavar="NAMES",
            help="Run only these rows, such as local,fedavg. The tables show all finished runs.",
            show_default="all rows",
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Run again what was run with other settings or code. Old folders are kept."),
    ] = False,
    quiet: QUIET = False,
) -> None:
    """Run the tables of a paper, compare them with the published numbers, and evaluate the paper's claims.

    Finished runs are skipped and unfinished runs are resumed, so you can stop the command and start it again. All
    settings are checked before the first run starts. Claims are evaluated by paired differences over seeds.

    Example: polyfed reproduce fedvtc table1 --seeds 0-2
    """
    from polyfed import papers
    from polyfed.config.sweep import parse_seeds
    from polyfed.papers.text import FORMATS
    from polyfed.runs.atomic_files import check_file_writable

    loaded = papers.load_paper(paper)
    chosen_scale = _scale(scale)
    tables = _tables(loaded, table, chosen_scale)
    chosen_seeds = parse_seeds(seeds)
    if format not in FORMATS:
        raise InputError(f"--format is '{format}'; {nearest(format, FORMATS)}")
    if jobs is not None and jobs < 1:
        raise InputError(f"--jobs is {jobs}; expected 1 or more")
    if tflops is not None and not 0 < tflops < float("inf"):
        raise InputError(f"--tflops is {tflops}; expected a number above 0")
    if page is not None:
        check_file_writable(page)
    folder = out / paper / scale
    grid = papers.plan_grid(loaded, chosen_scale, tables, chosen_seeds, folder, more=changes or [], root=root)
    chosen = _with_rows(grid, loaded, rows)
    if check:
        print_text(estimate(chosen, chosen_scale, tflops))
        return
    failed = False if finished else _run(chosen, chosen_scale, tflops, jobs, force, quiet)
    _print_results(loaded, chosen_scale, tables, chosen_seeds, grid, format, page, paper, changes or [])
    print_message(f"run folders: {folder}")
    if failed:
        raise typer.Exit(1)


def _scale(text: str) -> Scale:
    from polyfed.papers import SCALES

    for name in SCALES:
        if name == text:
            return name
    raise InputError(f"--scale is '{text}'; {nearest(text, SCALES)}")


def _tables(paper: Paper, table: str | None, scale: Scale) -> list[str]:
    """Return the tables to run: all that exist at the scale, or the chosen one."""
    existing = [name for name in paper.tables if paper.settings_of(name, scale)]
    if not existing:
        raise InputError(f"{paper.title} has no table at --scale {scale}")
    if table is None:
        return existing
    if table not in paper.tables:
        raise InputError(f"{paper.title} has no table '{table}'; {nearest(table, paper.tables)}")
    if table not in existing:
        raise InputError(f"{table} of {paper.title} does not exist at --scale {scale}; tables: {', '.join(existing)}")
    return [table]


def _with_rows(grid: list[GridRun], paper: Paper, names: str | None) -> list[GridRun]:
    """Return the runs of some rows, given as names separated by commas."""
    if names is None:
        return grid
    rows = [name.strip() for name in names.split(",")]
    for name in rows:
        if name not in paper.rows:
            raise InputError(f"--rows names '{name}', which is not a row of this paper; {nearest(name, paper.rows)}")
    return [planned for planned in grid if any(row in rows for _, row in planned.cells)]


def _run(grid: list[GridRun], scale: Scale, tflops: float | None, jobs: int | None, force: bool, quiet: bool) -> bool:
    """Run what has not finished. Return whether a run failed."""
    from polyfed.cli.sweep import SweepStoppedError, run_all, unfinished_runs

    unfinished = unfinished_runs([one.run for one in grid], force)
    if len(unfinished) < len(grid):
        print_message(f"{len(grid) - len(unfinished)} of {len(grid)} runs have finished already")
    if not unfinished:
        return False
    if scale == "paper":
        folders = {run.folder for run in unfinished}
        print_message(estimate([one for one in grid if one.run.folder in folders], scale, tflops))
    failed, stopped = run_all(unfinished, jobs, quiet, skip_invalid=False)
    for name, message in failed.items():
        print_message(f"{name} failed: {message}")
    if stopped:
        raise SweepStoppedError(f"stopped {len(stopped)} unfinished runs; run the same command again to resume them")
    return bool(failed)


def estimate(grid: list[GridRun], scale: Scale, tflops: float | None) -> str:
    """Check every setting without its data, and return how many hours all runs together take.

    Raise `InputError` for the first setting that cannot run. Settings that need more memory than this machine has are
    named: they may run elsewhere.
    """
    from polyfed.benchmarks.device_record import read_record
    from polyfed.cli.work_output import format_hours
    from polyfed.federation.data_stand_in import federation_without_data
    from polyfed.federation.free_memory import TooLittleMemoryError
    from polyfed.federation.workload import USUAL_OPERATIONS_PER_SECOND, Workload, estimate_workload

    settings = len({one.cells for one in grid})
    if settings > MANY_SETTINGS:
        print_message(f"checking {settings} settings, which takes about a second each")
    works: dict[tuple[tuple[str, str], ...], Workload] = {}
    unchecked = set()
    for one in grid:
        if one.cells not in works:
            try:
                federation = federation_without_data(one.run.config)
                profiles = federation.profiles()
                federation.check(profiles)
            except TooLittleMemoryError as error:
                print_message(f"not checked: {one.run.name}: {error}")
                unchecked.add(one.cells)
            except InputError as error:
                raise InputError(f"{one.run.name}: {error}") from None
            works[one.cells] = estimate_workload(federation, profiles)
    count = len(works) - len(unchecked)
    runs = sum(one.cells not in unchecked for one in grid)
    passed = f"{runs} runs of {count} setting{'' if count == 1 else 's'} pass the check"
    record = read_record() if tflops is None else None
    if record is None and tflops is None and scale == "cpu":
        return f"{passed}; run `polyfed bench device`, or give --tflops, to estimate the hours"
    speed = record.tflops if record is not None else tflops or TFLOPS
    operations = record.operations_per_second if record is not None else USUAL_OPERATIONS_PER_SECOND
    hours = [
        max(work.computing_hours(speed), work.starting_hours(operations))
        for work in (works[one.cells] for one in grid)
    ]
    device = f"{record.device}, as measured" if record is not None else f"a device with {speed:g} TFLOPS"
    return (
        f"{passed}; about {format_hours(sum(hours))} in all for {device}, one run at a time; further models of a "
        "method and the server's work are not counted"
    )


def _print_results(
    paper: Paper,
    scale: Scale,
    tables: list[str],
    seeds: list[int],
    grid: list[GridRun],
    format: str,
    page: Path | None,
    name: str,
    more: list[str],
) -> None:
    """Print tables and claims from finished runs, and write the page."""
    from polyfed.papers import evaluate_claims, find_runs, table_result
    from polyfed.papers.page import notes_path, page_text
    from polyfed.papers.text import results_json, results_text

    runs = find_runs(grid)
    results = [table_result(paper, scale, table, runs, seeds) for table in tables]
    claims = evaluate_claims(paper, scale, tables, runs)
    if format == "json":
        print_json(results_json(paper, scale, results, claims))
    else:
        print_text(results_text(paper, scale, results, claims, markdown=format == "md"))
    missing = sum(not (one.run.folder / "result.json").is_file() for one in grid)
    if missing:
        print_message(f"{missing} of {len(grid)} runs have not finished")
    if page is not None:
        notes = notes_path(page)
        written = notes.read_text(encoding="utf-8") if notes.is_file() else None
        text = page_text(name, paper, scale, results, claims, runs, seeds, more=more, notes=written)
        page.write_text(text, encoding="utf-8")
        print_message(f"wrote {page}")


COMMANDS = {"reproduce": reproduce}
