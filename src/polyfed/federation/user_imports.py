"""Import the modules and files in which users register methods and models (`imports` in a config)."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import linecache
import os
import sys
import traceback
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from types import ModuleType

from polyfed.config.code_digest import file_digests
from polyfed.core import rng
from polyfed.core.filter import forget as forget_filters
from polyfed.core.method import forget as forget_methods
from polyfed.engines.fork_server import WORKER
from polyfed.errors import InputError, PolyfedError
from polyfed.models.registry import forget as forget_models

FILE_PREFIX = "polyfed_import_"  # of the names of modules that were imported by path
_importing = 0  # nesting of imports of user code in progress
_digests: dict[str, dict[str, str]] = {}  # of imported modules and files: the code that they had, by file
_loaded: dict[str, tuple[object, dict[str, str]]] = {}  # files of loaded modules: spec and code at first sight


class RunReached(BaseException):
    """The import of a script has reached its `polyfed.run`. All that the run needs has been defined before."""


def check_no_nested_run() -> None:
    """End the import of a script at its `polyfed.run`. Raise `InputError` in any other code of a worker."""
    if _importing:
        raise RunReached
    if os.environ.get(WORKER):
        raise InputError("polyfed.run was called by a worker of a run; call it in the main process")


@contextlib.contextmanager
def _import_in_progress() -> Iterator[None]:
    global _importing
    _importing += 1
    try:
        # a script prints once, in the main process
        with contextlib.redirect_stdout(io.StringIO()) if os.environ.get(WORKER) else contextlib.nullcontext():
            yield
    finally:
        _importing -= 1


def main_module_name() -> str | None:
    """Return the module name of the main script if it was started by `python -m`."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return None if spec is None else spec.name


def import_user_modules(names: Sequence[str], *, again: bool = False) -> None:
    """Import modules by name, and files by path if the name ends in `.py`. Raise `InputError` if one fails.

    A module is imported again if its code, or that of a local module that it imports, has changed. With `again`,
    files run again in any case, so that they register their models and methods again.
    """
    for name in names:
        digests = file_digests([name])
        if name in _digests and _digests[name] != digests:
            _unload({*_digests[name], *digests})
        _digests[name] = digests  # even if the import fails: it may have loaded some of the modules
        try:
            if name.endswith(".py"):
                import_user_file(Path(name).expanduser().resolve(), again=again)
            elif name != main_module_name():  # importing the main script again would start a second run
                with _import_in_progress():
                    importlib.import_module(name)
        except RunReached:
            raise InputError(
                f"imports: the module '{name}' calls polyfed.run when it is imported; put the call under "
                "if __name__ == '__main__':"
            ) from None
        except PolyfedError:
            raise
        except Exception as error:  # user code can raise anything
            where = _place(error, digests)
            raise InputError(
                f"imports: '{name}' cannot be imported: {where}{type(error).__name__}: {error}"
            ) from None


def check_current(files: Collection[str]) -> None:
    """Raise `InputError` if a file, or a local module that it imports, has changed since an earlier run.

    This process would run the old code and its workers the new one.
    """
    for module, path in _modules_of(files).values():
        spec, digests = getattr(module, "__spec__", None), file_digests([path])
        known_spec, known_digests = _loaded.setdefault(path, (spec, digests))
        if known_spec is not spec:  # it was reloaded
            _loaded[path] = (spec, digests)
        elif known_digests != digests:
            names = sorted({*known_digests, *digests})
            changed = next(name for name in names if known_digests.get(name) != digests.get(name))
            raise InputError(
                f"{changed} has changed since it was imported; reload {module.__name__} with importlib.reload, or "
                "start Python again"
            )


def _unload(files: Collection[str]) -> None:
    """Forget loaded modules of files, with the methods, filters and models that they registered."""
    importlib.invalidate_caches()
    main = sys.modules.get("__main__")
    modules = {name for name, (module, _) in _modules_of(files).items() if module is not main}
    for name in modules:
        del sys.modules[name]
    for forget in (forget_methods, forget_filters, forget_models):
        forget(modules)
    linecache.checkcache()


def _modules_of(files: Collection[str]) -> dict[str, tuple[ModuleType, str]]:
    """Return the loaded modules of files, by name, each with its file."""
    names = {Path(file).name for file in files}
    modules = {}
    for name, module in list(sys.modules.items()) if names else ():
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.rpartition(os.sep)[2] in names and os.path.realpath(file) in files:
            modules[name] = (module, os.path.realpath(file))
    return modules


def _place(error: Exception, files: Collection[str]) -> str:
    """Return the file and line of the user's code in which an error was raised."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
    return f"{frames[-1].filename}, line {frames[-1].lineno}: " if frames else ""


def import_user_file(path: Path, *, again: bool = False) -> ModuleType:
    """Import a Python file once and return its module. The import ends where the file calls `polyfed.run`.

    With `again`, run the file even if it has been imported, so that it registers its models and methods again.
    """
    module_name = f"{FILE_PREFIX}{path.stem}_{rng.derive(str(path)):x}"
    main_file = getattr(sys.modules.get("__main__"), "__file__", None)
    if main_file is not None and Path(main_file).resolve() == path:
        return sys.modules["__main__"]  # importing the main script again would start a second run
    if module_name in sys.modules and not again:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None or not path.exists():
        raise InputError(f"imports: there is no file {path}")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # a file may import modules next to it
    sys.modules[module_name] = module = importlib.util.module_from_spec(spec)
    try:
        with _import_in_progress():
            spec.loader.exec_module(module)
    except RunReached:
        pass
    except BaseException:
        del sys.modules[module_name]
        raise
    return module
