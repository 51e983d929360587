"""Find methods and server filters by name, and make them from a config."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyfed.catalogue.source_reader import PACKAGE, MethodInfo, read_file
from polyfed.errors import InputError, nearest

if TYPE_CHECKING:
    from polyfed.core.filter import ServerFilter
    from polyfed.core.method import Method

ENTRY_POINTS = "polyfed.methods"


@cache
def methods() -> Mapping[str, MethodInfo]:
    """Every method by name, in alphabetical order."""
    found: dict[str, MethodInfo] = {}
    for module, path in _sources():
        try:
            found |= {listed.name: listed for listed in read_file(module, path)}
        except (OSError, SyntaxError, ValueError):
            if module.startswith("polyfed."):
                raise
            # a plug-in that cannot be read is not listed; whoever asks for it by name is told so
    return dict(sorted(found.items()))


@cache
def filters() -> Mapping[str, MethodInfo]:
    """Every server filter by name."""
    sources = _modules("filters", "filter.py")
    return {listed.name: listed for module, path in sources for listed in read_file(module, path)}


def load(name: str) -> type[Method]:
    """The class of a method. Its file is imported now, unless it is already there."""
    from polyfed.core.method import registered

    if name not in registered():
        for listed in methods().values():
            if name in (listed.name, *listed.aliases):
                importlib.import_module(listed.module)
    if name not in registered():
        known = {*methods(), *registered()}
        raise InputError(f"there is no method called '{name}'; {nearest(name, known)}")
    return registered()[name]


def make(settings: Mapping[str, Any]) -> Method:
    """A method from its name and fields; unknown fields and wrong types are refused in one sentence."""
    method = load(str(settings["name"]))
    return method(**_checked("method", method, settings))


def make_filter(settings: str | Mapping[str, Any]) -> ServerFilter | None:
    """A server filter from its name and fields; None where the config asks for none."""
    if isinstance(settings, str):
        settings = {"name": settings}
    name = str(settings["name"])
    if name == "none":
        return None
    from polyfed.core.filter import registered

    if name not in registered() and name in filters():
        importlib.import_module(filters()[name].module)
    if name not in registered():
        raise InputError(
            f"there is no server filter called '{name}'; {nearest(name, {'none', *filters(), *registered()})}"
        )
    chosen = registered()[name]
    return chosen(**_checked("server_filter", chosen, settings))


def _checked(key: str, kind: type[Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that a config gives a method or a filter, if they are its own and of the right types."""
    import dataclasses
    from typing import get_type_hints

    from pydantic import ConfigDict, ValidationError, create_model

    given = {name: value for name, value in settings.items() if name != "name"}
    fields = {f.name: f for f in dataclasses.fields(kind)}
    for name in given:
        if name not in fields:
            raise InputError(f"{key.replace('_', ' ')} {kind.name} has no field '{name}'; {nearest(name, fields)}")
    hints = get_type_hints(kind)
    shape: Any = {name: (hints[name], ...) for name in given}
    try:
        create_model(
            "fields", __config__=ConfigDict(strict=True, arbitrary_types_allowed=True, allow_inf_nan=False), **shape
        )(**given)
    except ValidationError as error:
        problem = error.errors()[0]
        said = problem["msg"][0].lower() + problem["msg"][1:]
        raise InputError(
            f"{key}.{problem['loc'][0]} is {problem['input']!r}: {said.replace('input should be', 'expected')}"
        ) from None
    return given


def _sources() -> Iterator[tuple[str, Path]]:
    """Modules that hold methods: ours, and those that installed packages announce."""
    yield from _modules("methods", "method.py")
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        module = entry.value.partition(":")[0]
        try:
            spec = importlib.util.find_spec(module)
        except (ImportError, ValueError):
            continue  # announced by a package whose module is gone
        if spec is not None and spec.origin is not None and spec.origin.endswith(".py"):
            yield module, Path(spec.origin)


def _modules(room: str, main: str) -> Iterator[tuple[str, Path]]:
    """Yield the modules of a room, and the main modules of its folders, with their files."""
    folder = PACKAGE / room
    for path in sorted((*folder.glob("*.py"), *folder.glob(f"*/{main}"))):
        if path.stem != "__init__":
            yield ".".join(("polyfed", *path.relative_to(PACKAGE).with_suffix("").parts)), path
