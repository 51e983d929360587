"""The files that clients start from (`models.start`): trained weights of an earlier run or of the user's own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from polyfed.config.config import Config
from polyfed.errors import InputError, nearest
from polyfed.models.weight_files import WEIGHTS


def start_files(config: Config) -> dict[str, Path]:
    """Return the weights file that each client starts from, by name. Clients without a file start untrained.

    Raise `InputError` if a file is missing, or if `models.start` names an unknown client.
    """
    start = config.models.start
    if start is None:
        return {}
    if isinstance(start, Mapping):
        for name in start:
            if name not in config.client_names:
                raise InputError(f"models.start names client '{name}', which does not exist; {_known(name, config)}")
        return {name: weights_file(Path(path), name) for name, path in start.items()}
    folder = Path(start)
    if folder.is_file() or (folder / WEIGHTS).is_file():
        return dict.fromkeys(config.client_names, weights_file(folder, "all clients"))
    if not folder.is_dir():
        raise InputError(f"models.start: there is no folder {folder}")
    missing = [name for name in config.client_names if not (folder / quote(name, safe="") / WEIGHTS).is_file()]
    if missing:
        raise InputError(
            f"models.start: {folder} has no {quote(missing[0], safe='')}/{WEIGHTS} for client {missing[0]}; give a "
            "folder that polyfed export wrote, or one folder for each client that has one: {client: folder, ...}"
        )
    return {name: folder / quote(name, safe="") / WEIGHTS for name in config.client_names}


def weights_file(path: Path, client: str) -> Path:
    """Return a safetensors file, given as a file or as the folder of an exported model."""
    file = path / WEIGHTS if path.is_dir() else path
    if not file.is_file():
        raise InputError(f"models.start: there is no file {file}, from which client {client} should start")
    if file.suffix != ".safetensors":
        raise InputError(f"models.start: {file} is not a .safetensors file; save a state dict with safetensors.torch")
    return file


def _known(name: str, config: Config) -> str:
    clients = config.client_names
    return nearest(name, clients) if len(clients) <= 20 else f"clients are {clients[0]} to {clients[-1]}"
