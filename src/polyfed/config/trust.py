"""Trust in code that a run folder names: it is imported without asking only if this user made the folder here."""

from __future__ import annotations

from pathlib import Path

from polyfed.config.config import Config
from polyfed.errors import InputError
from polyfed.runs.origin import is_own, write_origin

REMEDY = "read this code, then add --trust (in Python trust=True)"
ADOPT = "read this code, then run: polyfed resume {folder} --trust"


def check_trusted(config: Config, folder: Path, *, remedy: str = REMEDY) -> None:
    """Raise `InputError` if a run folder names code to import, and was not made by this user on this machine."""
    code = named_code(config)
    if code and not is_own(folder):
        raise InputError(
            f"{folder} was not made by you on this machine, or was changed since, and it names code to import "
            f"({', '.join(code)}); {remedy.format(folder=folder)}"
        )


def require_trust(config: Config, folder: Path, *, trust: bool, remedy: str) -> None:
    """Check that a run folder is trusted. With `trust`, it counts as the user's own from now on."""
    if trust:
        write_origin(folder)
    else:
        check_trusted(config, folder, remedy=remedy)


def check_source_trusted(config: Config, source: str, *, remedy: str = REMEDY) -> None:
    """Check a config that was read from `source`, if that is the config file of a run folder."""
    file = Path(source)
    if file.name == "config.yaml" and (file.parent / "events.jsonl").exists():
        check_trusted(config, file.parent, remedy=remedy)


def named_code(config: Config) -> list[str]:
    """Return the modules and files that a run of this config imports."""
    source = config.method.get("source")
    own = ["user_code.py"] if config.user_code else []
    return [*config.imports, *own, *([str(source)] if source else [])]
