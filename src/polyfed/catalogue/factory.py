"""Find methods and server filters by name, and create them from a config."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from polyfed import plugins
from polyfed.catalogue.source_reader import PACKAGE, MethodInfo, read_file
from polyfed.errors import InputError, nearest
from polyfed.option_checks import Bound, check_bounds, check_names, check_types, type_from_text

if TYPE_CHECKING:
    from polyfed.core.filter import ServerFilter
    from polyfed.core.method import Method


@cache
def methods() -> Mapping[str, MethodInfo]:
    """Return all methods by name, in alphabetical order."""
    infos: dict[str, MethodInfo] = {}
    for module, path in _sources():
        try:
            infos |= {info.name: info for info in read_file(module, path)}
        except (OSError, SyntaxError, ValueError) as error:
            if module.startswith("polyfed."):
                raise
            warnings.warn(f"{path}, an installed method, cannot be read: {error}", stacklevel=2)
    return dict(sorted(infos.items()))


@cache
def filters() -> Mapping[str, MethodInfo]:
    """Return all server filters by name."""
    sources = _modules("filters", "filter.py")
    return {info.name: info for module, path in sources for info in read_file(module, path)}


def load(name: str) -> type[Method]:
    """Return the class of a method, and import its module if necessary."""
    from polyfed.core.method import registered

    if name not in registered():
        info = find_method(name)
        if info is not None:
            importlib.import_module(info.module)
    if name not in registered():
        raise InputError(f"there is no method called '{name}'; {nearest(name, {*methods(), *registered()})}")
    return registered()[name]


def make(settings: Mapping[str, Any]) -> Method:
    """Create a method from its name and options; raise InputError for unknown options and wrong values."""
    method = load(str(settings["name"]))
    return method(**_checked("method", method, settings))


def make_filter(settings: str | Mapping[str, Any]) -> ServerFilter | None:
    """Create a server filter from its name and options; return None for the name `none`."""
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
    server_filter = registered()[name]
    return server_filter(**_checked("server_filter", server_filter, settings))


def _checked(key: str, kind: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in a config section; raise InputError for unknown options and wrong types.

    Bounds are checked when the object is created (`polyfed.core.options`).
    """
    import dataclasses

    given = {name: value for name, value in settings.items() if name != "name"}
    check_names(key, kind.name, given, [field.name for field in dataclasses.fields(kind)])
    if given:
        check_types(key, given, _type_hints(kind))
    return given


@lru_cache(maxsize=256)  # reading them takes a millisecond
def _type_hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind)


def check_method(settings: Mapping[str, Any]) -> None:
    """Raise InputError for an unknown method and wrong options, from its source, without importing it."""
    name = str(settings["name"])
    method = find_method(name)
    if method is None:
        raise InputError(f"there is no method called '{name}'; {nearest(name, method_names())}")
    _check_declared("method", method, settings)


def check_filter(settings: str | Mapping[str, Any]) -> None:
    """Raise InputError for an unknown server filter and wrong options, without importing it."""
    if isinstance(settings, str):
        settings = {"name": settings}
    name = str(settings["name"])
    if name == "none":
        return
    if name not in filters():
        raise InputError(f"there is no server filter called '{name}'; {nearest(name, {'none', *filters()})}")
    _check_declared("server_filter", filters()[name], settings)


def _check_declared(key: str, info: MethodInfo, settings: Mapping[str, Any]) -> None:
    given = {name: value for name, value in settings.items() if name != "name"}
    options = {option.name: option for option in info.options}
    check_names(key, info.name, given, options)
    check_types(key, given, {name: type_from_text(option.type) for name, option in options.items()})
    degenerate = bool(given.get("allow_degenerate", False))
    for name, value in given.items():
        bounds = [Bound(kind, number) for kind, number in options[name].bounds.items()]
        check_bounds(f"{key}.{name}", value, bounds, info.class_name, allow_degenerate=degenerate)


@cache
def find_method(name: str) -> MethodInfo | None:
    """Return the entry of a method, by its name or an alias. Parse only files that mention the name."""
    own = _own_method(name)
    return own if own is not None else _declared_in(_plugin_sources(), name)


@cache
def _own_method(name: str) -> MethodInfo | None:
    return _declared_in(_modules("methods", "method.py"), name)


def _declared_in(sources: Iterable[tuple[str, Path]], name: str) -> MethodInfo | None:
    for module, path in sources:
        with contextlib.suppress(OSError, SyntaxError, ValueError):  # a plug-in that cannot be read
            if f'"{name}"' in path.read_text():
                for info in read_file(module, path):
                    if name in (info.name, *info.aliases):
                        return info
    return None


def method_names() -> list[str]:
    """Return the names of all methods, without parsing their files."""
    names: list[str] = []
    for _, path in _sources():
        with contextlib.suppress(OSError, ValueError):
            names += re.findall(r'^@register\("([^"]+)"', path.read_text(), flags=re.MULTILINE)
    return sorted(names)


def _sources() -> Iterator[tuple[str, Path]]:
    """Yield the modules of methods: those of polyfed, and entry points of installed packages."""
    yield from _modules("methods", "method.py")
    yield from _plugin_sources()


def _plugin_sources() -> Iterator[tuple[str, Path]]:
    for name, entry in plugins.entry_points(plugins.METHODS).items():
        module = entry.value.partition(":")[0]
        try:
            spec = importlib.util.find_spec(module)
            origin = None if spec is None else spec.origin
        except Exception:  # the package of the module runs, and can raise anything
            origin = None
        if origin is not None and origin.endswith(".py"):
            yield module, Path(origin)
        else:
            title = plugins.describe(plugins.METHODS, name)
            warnings.warn(f"{title} is not listed: there is no module {module}", stacklevel=2)


def _modules(room: str, main: str) -> Iterator[tuple[str, Path]]:
    """Yield the modules of a room, and the main modules of its folders, with their files."""
    folder = PACKAGE / room
    for path in sorted((*folder.glob("*.py"), *folder.glob(f"*/{main}"))):
        if path.stem != "__init__":
            yield ".".join(("polyfed", *path.relative_to(PACKAGE).with_suffix("").parts)), path
