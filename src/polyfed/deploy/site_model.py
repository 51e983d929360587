"""A site's own model, from a Python file with a function `build`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

from torch import nn

from polyfed.errors import InputError
from polyfed.federation.user_imports import import_user_file
from polyfed.models import ModelSpec, SplitModel, from_module, register

CUSTOM_PREFIX = "own-"  # of the names under which models from files are registered


def model_from_file(path: Path) -> ModelSpec:
    """Register the model of a file and return its spec.

    `build()` returns any module whose last layer is a Linear. It may take the arguments `shape` and `classes`.
    """
    module = import_user_file(path.expanduser().resolve())
    factory = getattr(module, "build", None)
    if not callable(factory):
        raise InputError(f"{path} has no function build() that returns a model")
    name = f"{CUSTOM_PREFIX}{path.stem}"
    register(name, _split_at_last_linear(factory, path))
    return ModelSpec(name)


def _split_at_last_linear(factory: Callable[..., nn.Module], path: Path) -> Callable[..., SplitModel]:
    """Return a factory of split models: the head is the last Linear of the factory's module."""
    parameters = inspect.signature(factory).parameters

    def build(shape: tuple[int, ...], classes: int) -> SplitModel:
        arguments = {"shape": shape, "classes": classes}
        module = factory(**{key: value for key, value in arguments.items() if key in parameters})
        if isinstance(module, SplitModel):
            return module
        linears = [name for name, part in module.named_modules() if isinstance(part, nn.Linear)]
        if not linears:
            raise InputError(f"the model of {path} has no Linear layer that could be its head")
        return from_module(module, linears[-1], shape=shape, classes=classes)

    return build
