"""The model zoo: every model is a backbone and a head, described by a `ModelSpec` and built by `build`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyfed.models.custom_modules import from_module
    from polyfed.models.groups import ModelGroup, group, group_names, model_group
    from polyfed.models.registry import ModelInfo, build, describe, names, register
    from polyfed.models.spec import ModelSpec
    from polyfed.models.split import SplitModel

__all__ = [
    "ModelGroup",
    "ModelInfo",
    "ModelSpec",
    "SplitModel",
    "build",
    "describe",
    "from_module",
    "group",
    "group_names",
    "model_group",
    "names",
    "register",
]

# public names by module, imported on first use: `groups`, `spec` and `zoo` work without torch
_MODULES = {
    "custom_modules": ("from_module",),
    "groups": ("ModelGroup", "group", "group_names", "model_group"),
    "registry": ("ModelInfo", "build", "describe", "names", "register"),
    "spec": ("ModelSpec",),
    "split": ("SplitModel",),
}


def __getattr__(name: str) -> Any:
    for module, names_ in _MODULES.items():
        if name in names_:
            value = getattr(importlib.import_module(f"polyfed.models.{module}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'polyfed.models' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
