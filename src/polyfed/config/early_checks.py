"""Checks of a config that need neither torch nor the data, so that commands report wrong names at once."""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path

from polyfed import catalogue, plugins
from polyfed.config.config import Config
from polyfed.config.start_files import start_files
from polyfed.data.partition_settings import settings_of
from polyfed.errors import InputError, nearest, require
from polyfed.models.groups import GROUPS, model_group
from polyfed.models.spec import ModelSpec
from polyfed.models.zoo import built_in_models

REMOTE = "sites"  # name of the dataset of a federation between real sites, which keep their own data


def check_names(config: Config) -> None:
    """Raise `InputError` for unknown methods, filters, models, datasets and partitions, and for missing files.

    Methods, filters and models are not checked if the config imports modules, which may register them.
    """
    missing = next((name for name in config.imports if name.endswith(".py") and not Path(name).exists()), None)
    if missing is not None:
        raise InputError(f"imports: there is no file {missing}")
    if not config.imports:
        if str(config.method["name"]) not in _registered("polyfed.core.method", "registered"):
            catalogue.check_method(config.method)
        _check_models(config)
        catalogue.check_filter(config.server_filter)
    start_files(config)
    _check_packages(config)
    if config.data.dataset != REMOTE:
        settings_of(config.data.partition)
        _check_dataset(config)


def _check_packages(config: Config) -> None:
    """Raise `InputError` if a setting needs a package of an extra that is not installed."""
    if config.privacy:
        require("opacus", extra="privacy", sentence="privacy needs")
    if str(config.data.partition.get("scheme")) == "flower":
        require("flwr_datasets", extra="partitioners", sentence="data.partition.scheme 'flower' needs")


def _check_models(config: Config) -> None:
    """Raise `InputError` for an unknown group or model, and for a model entry with wrong fields."""
    models = config.models
    entries = [*(models.clients or ()), *([models.server] if models.server is not None else [])]
    if models.clients is None and isinstance(models.group, str):
        model_group(models.group)
    elif models.clients is None:
        entries += models.group
    own = {*plugins.entry_points(plugins.MODELS), *_registered("polyfed.models.registry", "registered_models")}
    for entry in entries:
        name = ModelSpec.of(entry).name
        if name not in built_in_models() and name not in own:
            group = f"; there is a group of this name: models.group={name}" if name in GROUPS else ""
            raise InputError(f"unknown model '{name}'; {nearest(name, {*built_in_models(), *own})}{group}")


def _registered(module: str, function: str) -> Collection[str]:
    """Return the names that this process has registered. There are none if the module is not loaded."""
    loaded = sys.modules.get(module)
    return () if loaded is None else getattr(loaded, function)()


def _check_dataset(config: Config) -> None:
    """Raise `InputError` for an unknown dataset, or if `data.root` does not have its files."""
    from polyfed.data import cache, locations  # these import numpy
    from polyfed.data import catalogue as datasets

    data = config.data
    root = Path(data.root).expanduser() if data.root else None
    if root is not None and cache.read_meta(root) is not None:
        return  # a dataset made from arrays
    if root is None and data.dataset in plugins.entry_points(plugins.DATASETS):
        return
    locations.locate(datasets.known_dataset(data.dataset, root=root, how=datasets.Format(data.layout)), root)
