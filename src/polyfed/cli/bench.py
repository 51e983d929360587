"""`polyfed bench`."""

from __future__ import annotations

from typing import Annotated

import typer

from polyfed.cli.output import print_json, print_text
from polyfed.errors import InputError, nearest


def bench(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Name of one benchmark.", show_default="all benchmarks")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, with the settings of each benchmark.")] = False,
) -> None:
    """Run benchmarks of speed and memory on this machine.

    Example: polyfed bench overhead
    """
    from polyfed import benchmarks

    if name is not None and name not in benchmarks.names():
        raise InputError(f"there is no benchmark called '{name}'; {nearest(name, benchmarks.names())}")
    results = []
    for result in benchmarks.run(name):
        results.append(result)
        if not json and "report" in result:
            print_text(result["report"])
        elif not json:
            for figure, number in result["figures"].items():
                print_text(f"{result['name']}  {figure}  {number:g}")
    if json:
        print_json(results[0] if name is not None else results)


COMMANDS = {"bench": bench}
