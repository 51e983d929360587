"""An experiment as an ordinary Flower app, for people who run Flower already."""

from __future__ import annotations

import json
from pathlib import Path

from polyfed.api import run_path
from polyfed.config import Config
from polyfed.deploy.app_bundle import description
from polyfed.errors import InputError
from polyfed.runs.atomic_files import write_atomically

FILE = "pyproject.toml"


def write_app(config: Config, folder: Path) -> list[str]:
    """Write the app; gives what to do with it, a sentence each."""
    file = folder / FILE
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} exists and is not empty; choose another folder")
    if config.imports:
        raise InputError("the config has imports, which an app cannot carry; install those modules at every node")
    out = run_path(config).resolve()
    # a JSON text is a TOML text too, except that TOML knows no slash behind a backslash, which is never written here
    settings = f"polyfed = {json.dumps(json.dumps(config.to_dict()))}\nout = {json.dumps(str(out))}\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be made: {error.strerror}") from None
    write_atomically(file, description(settings).encode())
    names = ", ".join(config.client_names)
    return [
        f"Wrote {file}. Run it with: flwr run {folder}",
        f'It waits for the sites {names}; a SuperNode says who it is by --node-config \'polyfed-name="NAME" '
        'polyfed-state="FOLDER"\', and with polyfed-data and polyfed-model what it brings.',
        f"The run folder will be {out} on the machine of the ServerApp; --run-config 'out=\"FOLDER\"' changes it.",
    ]
