"""Entry points of installed packages: methods, models and datasets of other authors.

A package names them in its pyproject.toml, in the groups `polyfed.methods`, `polyfed.models` and `polyfed.datasets`.
They are found without being imported, and imported when they are used.
"""

from __future__ import annotations

import importlib.metadata
import warnings
from collections.abc import Mapping
from functools import cache
from typing import Any

from polyfed.errors import InputError

METHODS, MODELS, DATASETS = (f"polyfed.{kind}" for kind in ("methods", "models", "datasets"))


@cache
def entry_points(group: str) -> Mapping[str, importlib.metadata.EntryPoint]:
    """Return the entry points of a group by name. If two packages use one name, the first one counts."""
    found: dict[str, importlib.metadata.EntryPoint] = {}
    for entry in _all_entry_points().select(group=group):
        if entry.name not in found:
            found[entry.name] = entry
        elif entry.value != found[entry.name].value:
            warnings.warn(
                f"two packages bring {group} '{entry.name}': {_package(found[entry.name])} and {_package(entry)}; "
                "the first one is used",
                stacklevel=2,
            )
    return found


@cache
def _all_entry_points() -> Any:  # its class depends on the version of Python
    """Return the entry points of all groups, which reads the metadata of every installed package."""
    return importlib.metadata.entry_points()


def load(group: str, name: str) -> Any:
    """Import an entry point and return its object. Raise `InputError` if the import fails."""
    entry = entry_points(group)[name]
    try:
        return entry.load()
    except Exception as error:  # other packages can raise anything
        raise InputError(f"{describe(group, name)} cannot be imported: {type(error).__name__}: {error}") from None


def describe(group: str, name: str) -> str:
    """Return what an entry point is and where it comes from, for messages."""
    kind = group.removeprefix("polyfed.").removesuffix("s")
    return f"the {kind} '{name}' of the package {_package(entry_points(group)[name])}"


def _package(entry: importlib.metadata.EntryPoint) -> str:
    return "?" if entry.dist is None else str(entry.dist.name)
