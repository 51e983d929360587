"""`polyfed new method` and `polyfed new package`: write files to start from."""

from __future__ import annotations

import importlib.util
import keyword
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from polyfed.cli.output import print_text
from polyfed.errors import InputError

app = typer.Typer(no_args_is_help=True, help="Create files to start from.")


@app.command("method")
def method(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="Name of the method: lower-case words joined by - or _."),
    ],
    out: Annotated[Path, typer.Option(help="Folder to write the files into.")] = Path(),
) -> None:
    """Write a small working method and its test, to start your own method from.

    Example: polyfed new method my-method --out methods
    """
    from polyfed.cli.method_template import METHOD, TEST

    module = module_name(name)
    files = {out / f"{module}.py": METHOD, out / f"test_{module}.py": TEST}
    _write(files, name, module, "choose another name, or another folder with --out")
    path = next(iter(files))
    import_path = path if path.is_absolute() else f"./{path}"
    print_text(f"Wrote {' and '.join(str(file) for file in files)}")
    print_text(f"Run it:   polyfed run quickstart imports=[{import_path}] method={name}")
    print_text(f"Test it:  pytest {out / f'test_{module}.py'}")


@app.command("package")
def package(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="Name of the package and its method: lower-case words joined by - or _."),
    ],
    out: Annotated[Path, typer.Option(help="Folder to write the package into.")] = Path(),
) -> None:
    """Write a small installable package with a method, a model, a dataset and a test.

    After pip install, polyfed finds them by their names.

    Example: polyfed new package my-method
    """
    from polyfed.cli import package_template as template
    from polyfed.cli.method_template import METHOD

    module = module_name(name)
    folder = out / name
    if folder.exists():
        raise InputError(f"{folder} exists; choose another name, or another folder with --out")
    source = folder / "src" / module
    files = {
        folder / "pyproject.toml": template.PYPROJECT,
        folder / "README.md": template.README,
        source / "__init__.py": template.INIT,
        source / "method.py": METHOD,
        source / "models.py": template.MODELS,
        source / "data.py": template.DATA,
        folder / "tests" / f"test_{module}.py": template.TEST,
    }
    _write(files, name, module, "choose another name")
    print_text(f"Wrote the package {folder}")
    print_text(f"Install it:  pip install -e {folder}")
    print_text(f"Run it:      polyfed run quickstart method={name}")
    print_text(f"Test it:     pytest {folder}")


def _write(files: Mapping[Path, str], name: str, module: str, remedy: str) -> None:
    """Write templates with their names filled in. Raise `InputError` if a file exists."""
    for file in files:
        if file.exists():
            raise InputError(f"{file} exists; {remedy}")
    title = "".join(word.capitalize() for word in module.split("_"))
    try:
        for file, text in files.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text.replace("@NAME@", name).replace("@CLASS@", title).replace("@MODULE@", module))
    except OSError as error:
        raise InputError(f"{next(iter(files)).parent} cannot be written to: {error.strerror}") from None


def module_name(name: str) -> str:
    """Return the module name for a method name. Raise `InputError` if the name is invalid or taken."""
    from polyfed import catalogue

    if not re.fullmatch(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*", name):
        raise InputError(
            f"'{name}' cannot name a method; use lower-case letters and digits with - or _ between words"
        )
    module = name.replace("-", "_")
    taken = {known.replace("-", "_") for info in catalogue.methods().values() for known in (info.name, *info.aliases)}
    if module in taken:
        raise InputError(f"there is a method called '{name}' already; choose another name")
    if keyword.iskeyword(module) or importlib.util.find_spec(module) is not None:
        raise InputError(f"a file {module}.py would shadow the Python module '{module}'; choose another name")
    return module
