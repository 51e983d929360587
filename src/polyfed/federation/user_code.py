"""Code of the user that a run needs in its workers: models and methods that a script or a notebook registers.

A worker imports the script's file, or a module with the source of what a notebook defines (`user_code.py` in the run
folder). It then checks that its models are those of the main process.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType
from typing import Any

from torch import Tensor

from polyfed.config import Config
from polyfed.config.code_digest import MODULE_PREFIX, file_digests
from polyfed.core.method import registered as registered_methods
from polyfed.errors import InputError
from polyfed.federation.source_capture import REMEDY, SourceModule, find_source, has_file
from polyfed.federation.user_imports import FILE_PREFIX, main_module_name
from polyfed.models import ModelSpec
from polyfed.models.instances import weights_of
from polyfed.models.registry import OwnModel, registered_models

_INSTALLED = ("polyfed.", "torch.")  # modules that are the same in all processes
LIBRARY_PREFIX = "library_"  # of the names of these modules in the text
HEADER = '"""Code that this run needs in other processes, written by polyfed.run."""\n'


def collect_user_code(config: Config) -> str:
    """Return the text of a module that registers a config's models and method in other processes.

    Leave out what `imports` of the config registers. Raise `InputError` if code cannot be sent.
    """
    writer = _Writer()
    for kind, name, value, head in _own_code(config):
        if kind == "method":
            reference = writer.reference(value, f"the method {value.__qualname__}")
            if reference is None and "<locals>" in value.__qualname__:
                raise InputError(f"the method {value.__name__} is defined inside of a function; {REMEDY}")
            if reference is not None:  # its file may register it as well, which does no harm
                writer.lines.append(f"polyfed.register({name!r})({reference})")
        else:
            reference = writer.reference(value, f"the model '{name}'")
            writer.loads_weights = writer.loads_weights or bool(weights_of(value))
            if reference is not None:
                writer.lines.append(f"polyfed.models.register({name!r}, {reference}, head={head!r})")
    return writer.text


def fingerprints_as_code(config: Config) -> str:
    """Return a module without code, with digests of a config's models and method, which identify the run."""
    digests = {f"{kind} {name}": (fingerprint(value), head) for kind, name, value, head in _own_code(config)}
    text = "The code of this run cannot be read, so only the session that defines it can resume the run."
    return f'"""{text}"""\n\nDIGESTS = {digests!r}\n' if digests else ""


def _own_code(config: Config) -> Iterator[tuple[str, str, Any, str | None]]:
    """Yield kind, name, object and head of a config's method and models that `imports` does not register."""
    imported = file_digests(config.imports)

    def is_imported(module: str) -> bool:
        file = getattr(sys.modules.get(module), "__file__", None)
        return file is not None and os.path.realpath(file) in imported

    method = registered_methods().get(str(config.method["name"]))
    if method is not None and not method.__module__.startswith("polyfed.") and not is_imported(method.__module__):
        yield "method", method.name, method, None
    for name, own in own_models(config).items():
        if not is_imported(own.module):
            yield "model", name, own.factory, own.head


def initial_weights(config: Config) -> bytes:
    """Return the weights of the modules that the user passed, as a safetensors file; empty if there are none."""
    from safetensors.torch import save

    tensors: dict[str, Tensor] = {}
    for own in own_models(config).values():
        tensors |= weights_of(own.factory)
    return save(tensors) if tensors else b""


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
        self.lines: list[str] = []
        self.loads_weights = False
        self._captured = SourceModule()
        self._modules: dict[str, str] = {}  # name of each imported file or module in the text

    @property
    def text(self) -> str:
        if not self.lines and not self._modules:
            return ""
        captured = self._captured.text
        future = "from __future__ import annotations\n"
        first = future if captured.startswith(future) else ""
        imports = [
            "import functools",
            "from pathlib import Path",
            "import polyfed",
            "from polyfed.federation.user_imports import import_user_file, import_user_modules",
        ]
        if self.loads_weights:
            imports += [
                "from polyfed.models.instances import WEIGHTS_FILE, load_weights",
                "load_weights(Path(__file__).with_name(WEIGHTS_FILE))",
            ]
        modules = [
            f"{alias} = import_user_file(Path({home!r}))"
            if home.endswith(".py")
            else f"import {home} as {alias}"
            if alias.startswith(LIBRARY_PREFIX)
            else f"import_user_modules([{home!r}])\nimport {home} as {alias}"
            for home, alias in self._modules.items()
        ]
        lines = [*imports, *modules, captured.removeprefix(future), *self.lines]
        return HEADER + first + "\n".join(lines) + "\n"

    def reference(self, value: Any, owner: str) -> str | None:
        """Return an expression for an object, or None if only the import of its file can register it."""
        if isinstance(value, functools.partial):
            function = self.reference(value.func, owner)
            given = [self._argument(one, owner) for one in value.args]
            given += [f"{key}={self._argument(one, owner)}" for key, one in value.keywords.items()]
            return function and f"functools.partial({', '.join([function, *given])})"
        if isinstance(value, BuiltinFunctionType):
            return self._builtin(value, owner)
        if not isinstance(value, FunctionType | type):
            raise InputError(f"{owner} is a {type(value).__name__}; use a function or a class, or {REMEDY}")
        home = _home(value.__module__)
        if home is None:
            return self._captured.define(value, owner)
        alias = self._alias(home)
        found: Any = sys.modules[value.__module__]
        for part in value.__qualname__.split("."):
            found = getattr(found, part, None)
        if found is not value:
            return None
        return f"{alias}.{value.__qualname__}"

    def _alias(self, home: str) -> str:
        """Import a module or file. Return the name that it has in the text."""
        installed = home == "torch" or home.startswith(_INSTALLED)
        prefix = LIBRARY_PREFIX if installed else MODULE_PREFIX
        return self._modules.setdefault(home, f"{prefix}{len(self._modules)}")

    def _argument(self, value: Any, owner: str) -> str:
        """Return an expression for an argument of a partial function."""
        if isinstance(value, tuple):
            return f"({''.join(f'{self._argument(one, owner)}, ' for one in value)})"
        if not isinstance(value, FunctionType | BuiltinFunctionType | type | functools.partial):
            return repr(value)
        reference = self.reference(value, owner)
        if reference is None:
            raise InputError(
                f"{owner} uses {getattr(value, '__qualname__', value)}, which cannot be imported; {REMEDY}"
            )
        return reference

    def _builtin(self, value: BuiltinFunctionType, owner: str) -> str:
        """Return an expression for a function that is not written in Python, such as torch.relu."""
        for module in (value.__module__, "torch", "torch.nn.functional"):
            if module in sys.modules and getattr(sys.modules[module], value.__name__, None) is value:
                return f"{self._alias(module)}.{value.__name__}"
        raise InputError(f"{owner} uses the function {value.__name__}, which cannot be imported; {REMEDY}")


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
    if isinstance(value, FunctionType | type) and str(value.__module__).startswith(_INSTALLED):
        yield f"{value.__module__}.{value.__qualname__}"
    elif isinstance(value, functools.partial):
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
