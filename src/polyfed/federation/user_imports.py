"""Import the modules and files in which users register methods and models (`imports` in a config)."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

from polyfed.core import rng
from polyfed.engines.fork_server import WORKER
from polyfed.errors import InputError, PolyfedError

FILE_PREFIX = "polyfed_import_"  # of the names of modules that were imported by path
_importing = 0  # nesting of imports of user code in progress


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


def import_user_modules(names: Sequence[str]) -> None:
    """Import modules by name, and files by path if the name ends in `.py`. Raise `InputError` if one fails."""
    for name in names:
        try:
            if name.endswith(".py"):
                import_user_file(Path(name).expanduser().resolve())
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
            raise InputError(f"imports: '{name}' cannot be imported: {type(error).__name__}: {error}") from None


def import_user_file(path: Path) -> ModuleType:
    """Import a Python file once and return its module. The import ends where the file calls `polyfed.run`."""
    module_name = f"{FILE_PREFIX}{path.stem}_{rng.derive(str(path)):x}"
    main_file = getattr(sys.modules.get("__main__"), "__file__", None)
    if main_file is not None and Path(main_file).resolve() == path:
        return sys.modules["__main__"]  # importing the main script again would start a second run
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None or not path.exists():
        raise InputError(f"imports: there is no file {path}")
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
