"""From the arguments of `polyfed.run` to a raw config. Nothing here imports torch unless objects are given."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyfed.config import Config, loading
from polyfed.errors import InputError

if TYPE_CHECKING:
    from polyfed.data.dataset import Dataset


def raw_config(
    config: str | Path | Mapping[str, Any] | Config | None,
    *,
    data: Any,
    models: Any,
    method: Any,
    settings: Mapping[str, Any],
) -> tuple[dict[str, Any], Dataset | None]:
    """Return the raw config for the arguments of `run`, and the dataset if data is given in memory."""
    raw = _read_config(config)
    for key, value in settings.items():
        loading.set_key(raw, [key], value, key)
    if method is not None:
        raw["method"] = method_section(method)
    dataset = None if data is None else _apply_data(raw, data, settings.get("clients"))
    if models is not None:
        loading.set_key(raw, ["models"], _models_entry(models), "models")
    elif dataset is not None and config is None and "models" not in settings:
        from polyfed.data.in_memory import default_group

        loading.set_key(raw, ["models", "group"], default_group(dataset), "models")
    return raw, dataset


def _read_config(config: str | Path | Mapping[str, Any] | Config | None) -> dict[str, Any]:
    if config is None:
        return loading.read_source("quickstart")
    if isinstance(config, Config):
        return config.to_dict()
    if isinstance(config, Mapping):
        return dict(loading.unshared_copy(dict(config)))
    if not isinstance(config, str | Path):
        raise InputError(f"config is a {type(config).__name__}; expected a preset, a file, a mapping or a Config")
    return loading.read_source(config)


def method_section(method: Any) -> dict[str, Any]:
    """Return the `method` section of the config for a name, a mapping, a class or an object."""
    if isinstance(method, str | Mapping):  # without importing torch
        return {"name": method} if isinstance(method, str) else dict(method)
    from polyfed.federation.passed_objects import method_entry

    return method_entry(method)


def _models_entry(models: Any) -> dict[str, Any]:
    if isinstance(models, Mapping):
        return dict(models)
    from polyfed.federation.passed_objects import models_entry

    return models_entry(models)


def _apply_data(raw: dict[str, Any], data: Any, clients: int | None) -> Dataset | None:
    """Write data into a raw config. Return the dataset if the data is in memory."""
    from polyfed.data.in_memory import is_in_memory, passed_data

    if not is_in_memory(data):
        loading.set_key(raw, ["data"], dict(data), "data")
        return None
    passed = passed_data(data)
    # its cache folder, so that `resume` can open it again; the name of the folder contains a digest of the content
    source = {"dataset": passed.dataset.name, "root": str(passed.dataset.folder)}
    for key, value in {**source, **passed.settings}.items():
        loading.set_key(raw, ["data", key], value, "data")
    if passed.clients is not None:
        if clients not in (None, passed.clients):
            raise InputError(f"clients is {clients}, but data has {passed.clients} datasets, one per client")
        raw["clients"] = passed.clients
        if passed.names is not None:
            raw["names"] = list(passed.names)
    return passed.dataset
