"""Data, models and methods of a run that is resumed: are they the ones that the run started with?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyfed.config import Config
from polyfed.errors import InputError

if TYPE_CHECKING:
    from polyfed.data.dataset import Dataset


def same_data(data: Any, config: Config, folder: Path) -> Dataset:
    """Return the dataset of a resumed run. Raise `InputError` if its content is not that of the run."""
    from polyfed.data.in_memory import is_in_memory, passed_data

    if not is_in_memory(data):
        raise InputError("data is a section of a config; a resumed run has its config, so give arrays or nothing")
    dataset = passed_data(data).dataset
    if config.data.root is None or Path(config.data.root).name != dataset.folder.name:  # it contains a digest
        raise InputError(
            f"the data is not the data that {folder} started with; give the same arrays in the same order"
        )
    return dataset


def check_same_models(models: Any, config: Config, folder: Path) -> None:
    """Register the models of a resumed run. Raise `InputError` if they are not those of the run."""
    from polyfed.federation.passed_objects import models_entry
    from polyfed.federation.user_code import collect_user_code, fingerprints_as_code

    different = InputError(f"the models are not those that {folder} started with; give the same models and weights")
    if models_entry(models).get("group") != config.models.group:
        raise different
    try:
        code = collect_user_code(config)
    except InputError:
        code = fingerprints_as_code(config)
    if code != config.user_code:
        raise different


def check_data_exists(config: Config, folder: Path) -> None:
    """Raise `InputError` if the files of a resumed run's data are gone."""
    root = config.data.root
    if root is not None and not Path(root).expanduser().exists():
        raise InputError(
            f"the data of {folder} is no longer in {root}; if you passed it to polyfed.run, give it again: "
            f"polyfed.resume({str(folder)!r}, data=...)"
        )


def check_objects_exist(config: Config, folder: Path) -> None:
    """Raise `InputError` if a resumed run needs models or a method of another session."""
    from polyfed import catalogue
    from polyfed.core.method import registered
    from polyfed.models import ModelSpec, names

    group = config.models.group
    entries = config.models.clients or ([] if isinstance(group, str) else group)
    unknown = [name for name in (ModelSpec.of(entry).name for entry in entries) if name not in names()]
    if unknown:
        raise InputError(
            f"{folder} uses the model '{unknown[0]}' of another session, whose source was not saved; give the models "
            f"again: polyfed.resume({str(folder)!r}, models=[...])"
        )
    method = str(config.method["name"])
    if catalogue.find_method(method) is None and method not in registered():
        raise InputError(
            f"{folder} uses the method '{method}' of another session, whose source was not saved; give the method "
            f"again: polyfed.resume({str(folder)!r}, method=...)"
        )
