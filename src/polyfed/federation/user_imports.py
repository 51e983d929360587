"""Import the modules and files in which users register methods and models (`imports` in a config)."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from polyfed.core import rng
from polyfed.errors import InputError, PolyfedError


def import_user_modules(names: Sequence[str]) -> None:
    """Import modules by name, and files by path if the name ends in `.py`. Raise `InputError` if one fails."""
    for name in names:
        try:
            if name.endswith(".py"):
                import_user_file(Path(name).expanduser().resolve())
            else:
                importlib.import_module(name)
        except PolyfedError:
            raise
        except Exception as error:  # user code can raise anything
            raise InputError(f"imports: '{name}' cannot be imported: {type(error).__name__}: {error}") from None


def import_user_file(path: Path) -> ModuleType:
    """Import a Python file once and return its module."""
    module_name = f"polyfed_import_{path.stem}_{rng.derive(str(path)):x}"
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
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    return module
