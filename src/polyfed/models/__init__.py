"""The model zoo: every model is a backbone and a head, described by a `ModelSpec` and built by `build`."""

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
