"""Trust in code that a run folder or a config names: it is imported without asking only if this user made them."""

from __future__ import annotations

import os
from pathlib import Path

from polyfed.config.config import Config
from polyfed.errors import InputError
from polyfed.runs.origin import is_own, write_origin

REMEDY = "read this code, then add --trust (in Python trust=True)"


def check_trusted(config: Config, folder: Path, *, remedy: str = REMEDY) -> None:
    """Raise `InputError` if a run folder names code to import, and was not made by this user on this machine."""
    code = named_code(config)
    if code and not is_own(folder):
        raise InputError(
            f"{folder} was not made by you on this machine, or was changed since, and it names code to import "
            f"({', '.join(code)}); {remedy}"
        )


def require_trust(config: Config, folder: Path, *, trust: bool) -> None:
    """Check that a run folder is trusted. With `trust`, it counts as the user's own from now on."""
    if trust:
        write_origin(folder)
    else:
        check_trusted(config, folder)


def check_source_trusted(config: Config, source: object, *, trust: bool = False, remedy: str = REMEDY) -> None:
    """Check a config that was read from `source`. Raise `InputError` if it names code to import, and comes from a run
    folder that this user did not make, or from a file of another user. Other sources than files are trusted."""
    if trust or not isinstance(source, str | Path):
        return
    file = Path(source)
    if file.name == "config.yaml" and (file.parent / "events.jsonl").exists():
        check_trusted(config, file.parent, remedy=remedy)
    elif (code := named_code(config)) and file.is_file() and file.stat().st_uid not in (os.getuid(), 0):
        raise InputError(
            f"{file} belongs to another user of this machine, and it names code to import ({', '.join(code)}); "
            f"{remedy}"
        )


def named_code(config: Config) -> list[str]:
    """Return the modules and files that a run of this config imports."""
    source = config.method.get("source")
    own = ["user_code.py"] if config.user_code else []
    trackers = [name for name in config.track if ":" in name]  # module:Class
    return [*config.imports, *own, *([str(source)] if source else []), *trackers]
