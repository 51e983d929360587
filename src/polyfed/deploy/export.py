"""Export of an experiment as an ordinary Flower app, for users who run Flower themselves."""

from __future__ import annotations

import json
from pathlib import Path

from polyfed.api import run_path
from polyfed.config import Config
from polyfed.deploy.app_bundle import app_pyproject
from polyfed.errors import InputError
from polyfed.runs.atomic_files import write_atomically

FILE = "pyproject.toml"


def write_app(config: Config, folder: Path) -> list[str]:
    """Write the app to a new or empty folder. Return instructions for its use, one sentence each."""
    file = folder / FILE
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} exists and is not empty; choose another folder")
    if config.imports:
        raise InputError("the config has imports, which an app cannot carry; install those modules at every node")
    out = run_path(config).resolve()
    # JSON strings are TOML strings, except that TOML has no escaped slash, which json.dumps never writes
    settings = f"polyfed = {json.dumps(json.dumps(config.to_dict()))}\nout = {json.dumps(str(out))}\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be created: {error.strerror}") from None
    write_atomically(file, app_pyproject(settings).encode())
    names = ", ".join(config.client_names)
    return [
        f"Wrote {file}. Run it with: flwr run {folder}",
        f'The run waits for the sites {names}. Start each SuperNode with --node-config \'polyfed-name="NAME" '
        'polyfed-state="FOLDER"\', and add polyfed-data and polyfed-model if the site has its own data and model.',
        f"The run folder will be {out} where the ServerApp runs; change it with --run-config 'out=\"FOLDER\"'.",
    ]
