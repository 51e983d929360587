"""`polyfed new method`: a method file and its test, ready to edit."""

from __future__ import annotations

import importlib.util
import keyword
import re
from pathlib import Path
from typing import Annotated

import typer

from polyfed.cli.output import print_text
from polyfed.errors import InputError

app = typer.Typer(no_args_is_help=True, help="Start something of your own.")


@app.command("method")
def method(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Lower case, with - or _ between words.")],
    out: Annotated[Path, typer.Option(help="The folder to write into.")] = Path(),
) -> None:
    """Write a small working method and its test."""
    from polyfed.cli.method_template import METHOD, TEST

    stem = checked_stem(name)
    files = {out / f"{stem}.py": METHOD, out / f"test_{stem}.py": TEST}
    for file in files:
        if file.exists():
            raise InputError(f"{file} exists; choose another name, or another folder with --out")
    title = "".join(word.capitalize() for word in stem.split("_"))
    try:
        out.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            file.write_text(text.replace("@NAME@", name).replace("@CLASS@", title).replace("@STEM@", stem))
    except OSError as error:
        raise InputError(f"{out} cannot be written to: {error.strerror}") from None
    path = next(iter(files))
    shown = path if path.is_absolute() else f"./{path}"
    print_text(f"Wrote {' and '.join(str(file) for file in files)}")
    print_text(f"Run it:   polyfed run quickstart imports=[{shown}] method={name}")
    print_text(f"Test it:  pytest {out / f'test_{stem}.py'}")


def checked_stem(name: str) -> str:
    """The module's name for a method's name; refuses names that are taken, or that nothing could be called."""
    from polyfed import catalogue

    if not re.fullmatch(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*", name):
        raise InputError(
            f"'{name}' cannot name a method; use lower-case letters and digits with - or _ between words"
        )
    stem = name.replace("-", "_")
    taken = {
        known.replace("-", "_") for listed in catalogue.methods().values() for known in (listed.name, *listed.aliases)
    }
    if stem in taken:
        raise InputError(f"there is a method called '{name}' already; choose another name")
    if keyword.iskeyword(stem) or importlib.util.find_spec(stem) is not None:
        raise InputError(f"a file {stem}.py would hide Python's own '{stem}'; choose another name")
    return stem
