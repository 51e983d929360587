"""Models and methods that `polyfed.run` receives as objects. They are registered under names for the config."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from torch import nn

from polyfed import catalogue
from polyfed.core.method import Method, register
from polyfed.core.method import registered as registered_methods
from polyfed.errors import InputError
from polyfed.models import group_names
from polyfed.models import names as model_names
from polyfed.models import register as register_model
from polyfed.models.instances import capture

_passed: set[str] = set()  # names of models that this module has registered, and may give to other models later


def models_entry(models: Any) -> dict[str, Any]:
    """Return the `models` section of the config for names, modules, classes and functions. Clients get them in turn.

    A mapping is a section already, and a name may be that of a group.
    """
    if isinstance(models, Mapping):
        return dict(models)
    if isinstance(models, str):
        return {"group": models if models in group_names() else [models], "clients": None}
    if not isinstance(models, list | tuple):
        models = [models]
    if not models:
        raise InputError("models is empty; give at least one model")
    taken = {str(entry).partition("@")[0] for entry in models if isinstance(entry, str)}
    group: list[Any] = []
    by_object: dict[int, str] = {}
    for entry in models:
        if isinstance(entry, str | Mapping):
            group.append(entry if isinstance(entry, str) else dict(entry))
            continue
        if id(entry) not in by_object:
            by_object[id(entry)] = _register_model(entry, taken)
        group.append(by_object[id(entry)])
    return {"group": group, "clients": None}


def _register_model(entry: Any, taken: set[str]) -> str:
    """Register a model under a free name, which is added to `taken`."""
    if isinstance(entry, nn.Module):
        title: str = type(entry).__name__
        factory: Any = capture(entry, f"the model {title}")
    elif callable(entry):
        factory = entry
        named = entry if hasattr(entry, "__name__") else getattr(entry, "func", entry)  # of functools.partial
        title = str(getattr(named, "__name__", "model"))
    else:
        raise InputError(
            f"models holds a {type(entry).__name__}; expected names of models, torch modules, or classes or "
            "functions that make them"
        )
    title = "model" if title == "<lambda>" else title
    number, name = 1, title
    while name in taken or (name in model_names() and name not in _passed):
        number += 1
        name = f"{title}-{number}"
    taken.add(name)
    _passed.add(name)
    register_model(name, factory)
    return name


def method_entry(method: Any) -> dict[str, Any]:
    """Return the `method` section of the config for a name, a mapping, a class or an object.

    A class without a name is registered under the name of the class, such as my-method for MyMethod.
    """
    if isinstance(method, str):
        return {"name": method}
    if isinstance(method, Mapping):
        return dict(method)
    cls: Any = method if isinstance(method, type) else type(method)
    if not issubclass(cls, Method):
        raise InputError(
            f"method is a {cls.__name__}; expected the name of a method, or a subclass of polyfed.core.Method"
        )
    if "name" not in vars(cls) or not cls.name:
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", cls.__name__).lower()
        if catalogue.find_method(name) is not None:
            raise InputError(
                f'the method {cls.__name__} has no name of its own; put @register("name") above its class'
            )
        register(name)(cls)
    elif registered_methods().get(cls.name) is not cls:
        register(cls.name)(cls)  # a test or a cell has registered another class under this name
    return {"name": cls.name, **_options(method, cls)}


def _options(method: Any, cls: type[Method]) -> dict[str, Any]:
    """Return the options of a method object; none for a class, which has its defaults."""
    if isinstance(method, type):
        return {}
    return {field.name: _plain(getattr(method, field.name)) for field in dataclasses.fields(cls)}


def _plain(value: Any) -> Any:
    """Return an option as a value of a config file."""
    return [_plain(one) for one in value] if isinstance(value, tuple) else value
