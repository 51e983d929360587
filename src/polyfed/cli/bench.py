"""`polyfed bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyfed.cli.output import print_json, print_text
from polyfed.errors import InputError, nearest


def bench(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Name of one benchmark.", show_default="all benchmarks")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, with the settings of each benchmark.")] = False,
    page: Annotated[
        Path | None, typer.Option(help="Markdown file that gets a section with the figures.", show_default=False)
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder with Fashion-MNIST, for peers.", show_default="the Hugging Face hub")
    ] = None,
    htfllib: Annotated[Path | None, typer.Option(help="Checkout of HtFLlib, for peers.", show_default=False)] = None,
    task: Annotated[
        str | None,
        typer.Option(help="Task of peers: fedavg, idle, lg-fedavg or fedproto.", show_default="all tasks"),
    ] = None,
) -> None:
    """Run benchmarks of speed and memory on this machine.

    Example: polyfed bench overhead --page docs/benchmarks.md
    """
    from polyfed import benchmarks

    if name is not None and name not in benchmarks.names():
        raise InputError(f"there is no benchmark called '{name}'; {nearest(name, benchmarks.names())}")
    if name not in (None, "peers") and (data or htfllib or task):
        raise InputError(f"--data, --htfllib and --task are for the benchmark peers, not for {name}")
    if task is not None:
        from polyfed.benchmarks.peers import TASKS

        if task not in TASKS:
            raise InputError(f"--task is '{task}'; {nearest(task, TASKS)}")
        if task in TASKS[2:] and htfllib is None:
            raise InputError(f"--task {task} compares with HtFLlib; give its checkout with --htfllib")
    if htfllib is not None and not (htfllib / "system" / "flcore").is_dir():
        raise InputError(
            f"--htfllib is {htfllib}, which is not a checkout of HtFLlib: it has no folder system/flcore"
        )
    results = []
    for result in benchmarks.run(name, page=page, data=data, htfllib=htfllib, task=task):
        results.append(result)
        if not json and "report" in result:
            print_text(result["report"])
        elif not json:
            for figure, number in result["figures"].items():
                print_text(f"{result['name']}  {figure}  {number:g}")
    if json:
        print_json(results[0] if name is not None else results)


COMMANDS = {"bench": bench}
