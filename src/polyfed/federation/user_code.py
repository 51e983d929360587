"""Code of the user that a run needs in its workers: models and methods that a script or a notebook registers.

A worker imports the script's file, or a module with the source of what a notebook defines (`user_code.py` in the run
folder). It then checks that its models are those of the main process.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from polyfed.config import Config
from polyfed.core.method import registered as registered_methods
from polyfed.errors import InputError
from polyfed.federation.source_capture import REMEDY, SourceModule, find_source, has_file
from polyfed.federation.user_imports import FILE_PREFIX, main_module_name
from polyfed.models import ModelSpec
from polyfed.models.registry import OwnModel, registered_models

HEADER = '"""Code that this run needs in other processes, written by polyfed.run."""\n'


@dataclass(frozen=True)
class UserCode:
    """What other processes import to know a run's models and method."""

    imports: tuple[str, ...] = ()  # files and modules
    source: str = ""  # text of a module


def collect_user_code(config: Config) -> UserCode:
    """Return the code that registers a config's models and method. Raise `InputError` if it cannot be sent."""
    writer = _Writer()
    method = registered_methods().get(str(config.method["name"]))
    if method is not None and not method.__module__.startswith("polyfed."):
        reference = writer.reference(method, f"the method {method.__qualname__}")
        if writer.in_session(method):  # the file of other methods registers them
            writer.lines.append(f"polyfed.register({method.name!r})({reference})")
    for name, own in own_models(config).items():
        reference = writer.reference(own.factory, f"the model '{name}'")
        if reference is not None:
            writer.lines.append(f"polyfed.models.register({name!r}, {reference}, head={own.head!r})")
    return UserCode(tuple(writer.imports), writer.text)


def own_models(config: Config) -> dict[str, OwnModel]:
    """Return the models of a config that the user has registered in this process, by name."""
    settings = config.models
    entries: list[Any] = [*(settings.clients or ()), settings.server]
    if settings.clients is None and not isinstance(settings.group, str):
        entries += settings.group
    names = [ModelSpec.of(entry).name for entry in entries if entry is not None]
    return {name: registered_models()[name] for name in names if name in registered_models()}


def check_models(fingerprints: Mapping[str, str]) -> None:
    """Raise `InputError` if a model of the main process is unknown or different in this process."""
    for name, expected in fingerprints.items():
        own = registered_models().get(name)
        if own is None:
            raise InputError(f"the model '{name}' is not registered where workers find it; {REMEDY}")
        if fingerprint(own.factory) != expected:
            raise InputError(
                f"the model '{name}' differs between the main process and its workers, which import the script up to "
                f"its first polyfed.run; register different models under different names, or {REMEDY}"
            )


def fingerprint(value: Any) -> str:
    """Return a digest of a function's or class's code and constants. It does not depend on the module's name."""
    digest = hashlib.sha256()
    for part in _parts(value, set()):
        digest.update(f"{len(part)}:{part}".encode())
    return digest.hexdigest()


class _Writer:
    """Writes the module that registers models and methods in other processes."""

    def __init__(self) -> None:
        self.imports: list[str] = []
        self.lines: list[str] = []
        self._captured = SourceModule()
        self._from_files: list[str] = []

    @property
    def text(self) -> str:
        if not self.lines:
            return ""
        captured = self._captured.text
        future = "from __future__ import annotations\n"
        first = future if captured.startswith(future) else ""
        imports = [
            "import functools",
            "from pathlib import Path",
            "import polyfed",
            "from polyfed.federation.user_imports import import_user_file",
        ]
        lines = [*imports, *self._from_files, captured.removeprefix(future), *self.lines]
        return HEADER + first + "\n".join(lines) + "\n"

    def in_session(self, value: Any) -> bool:
        """Return whether an object is defined in a notebook or an interactive session, without a file."""
        return _home(value.__module__) is None

    def reference(self, value: Any, owner: str) -> str | None:
        """Return an expression for an object, or None if only the import of its file can register it."""
        if isinstance(value, functools.partial):
            function = self.reference(value.func, owner)
            given = [repr(one) for one in value.args] + [f"{key}={one!r}" for key, one in value.keywords.items()]
            return function and f"functools.partial({', '.join([function, *given])})"
        if not isinstance(value, FunctionType | type):
            raise InputError(f"{owner} is a {type(value).__name__}; use a function or a class, or {REMEDY}")
        home = _home(value.__module__)
        if home is None:
            return self._captured.define(value, owner)
        if home not in self.imports:
            self.imports.append(home)
        found: Any = sys.modules[value.__module__]
        for part in value.__qualname__.split("."):
            found = getattr(found, part, None)
        if found is not value:
            return None
        alias = f"module_{self.imports.index(home)}"
        is_file = home.endswith(".py")
        line = f"{alias} = import_user_file(Path({home!r}))" if is_file else f"import {home} as {alias}"
        if line not in self._from_files:
            self._from_files.append(line)
        return f"{alias}.{value.__qualname__}"


def _home(module: str) -> str | None:
    """Return the file or the name by which other processes import a loaded module, or None for a session's."""
    loaded = sys.modules.get(module)
    if module == "__main__" and getattr(loaded, "__spec__", None) is not None:
        return main_module_name()  # of python -m
    if module == "__main__" or module.startswith(FILE_PREFIX):
        file = getattr(loaded, "__file__", None)
        return str(Path(file).resolve()) if file is not None and Path(file).is_file() else None
    return module if has_file(module) else None


def _parts(value: Any, seen: set[int]) -> Iterable[str]:
    """Yield texts that tell a function or class from others."""
    if isinstance(value, functools.partial | FunctionType | type):
        if id(value) in seen:
            return
        seen.add(id(value))
    if isinstance(value, functools.partial):
        for part in (value.func, *value.args, *value.keywords.items()):
            yield from _parts(part, seen)
    elif isinstance(value, FunctionType):
        source = find_source(value)
        # not the compiled code if there is source: it depends on the imports in the same module
        yield from _code_parts(value.__code__) if source is None else [ast.dump(source[0])]
        for used in (value.__defaults__, value.__kwdefaults__, *_closure(value)):
            yield from _parts(used, seen)
        for name in _global_names(value.__code__):
            if not name.startswith("__") and name in value.__globals__:
                used = value.__globals__[name]
                if not isinstance(used, FunctionType | type) or used.__module__ == value.__module__:
                    yield from _parts(used, seen)
    elif isinstance(value, type):
        yield value.__qualname__
        for name, member in sorted(vars(value).items()):
            if not name.startswith("__") or isinstance(member, FunctionType):
                yield name
                yield from _parts(getattr(member, "__func__", member), seen)
        for base in value.__bases__:
            yield from _parts(base, seen) if base.__module__ == value.__module__ else [base.__qualname__]
    elif isinstance(value, bool | int | float | str | bytes | None):
        yield repr(value)
    elif isinstance(value, tuple | frozenset):
        for one in value if isinstance(value, tuple) else sorted(value, key=repr):
            yield from _parts(one, seen)
    else:
        yield type(value).__qualname__  # other values may change while a script runs


def _closure(function: FunctionType) -> list[Any]:
    cells = []
    for cell in function.__closure__ or ():
        try:
            cells.append(cell.cell_contents)
        except ValueError:  # an empty cell
            continue
    return cells


def _code_parts(code: CodeType) -> Iterable[str]:
    yield code.co_code.hex()
    yield repr((code.co_names, code.co_varnames, code.co_freevars))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code_parts(constant)
        else:
            yield repr(sorted(constant, key=repr)) if isinstance(constant, frozenset) else repr(constant)


def _global_names(code: CodeType) -> list[str]:
    nested = [name for one in code.co_consts if isinstance(one, CodeType) for name in _global_names(one)]
    return sorted({*code.co_names, *nested})
