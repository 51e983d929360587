"""`polyfed bench`."""

from __future__ import annotations

from typing import Annotated

import typer

from polyfed.cli.output import print_json, print_text
from polyfed.errors import InputError, nearest


def bench(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One benchmark; without it, all of them.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="As JSON, with the settings.")] = False,
) -> None:
    """Measure speed and memory on this machine."""
    from polyfed import benchmarks

    if name is not None and name not in benchmarks.names():
        raise InputError(f"there is no benchmark called '{name}'; {nearest(name, benchmarks.names())}")
    found = []
    for one in benchmarks.run(name):
        found.append(one)
        if not json:
            for figure, number in one["figures"].items():
                print_text(f"{one['name']}  {figure}  {number:g}")
    if json:
        print_json(found[0] if name is not None else found)


COMMANDS = {"bench": bench}
