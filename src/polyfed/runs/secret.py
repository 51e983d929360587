"""A secret that a party keeps in a folder of its own and tells nobody, made when it is first asked for."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from polyfed.errors import StateError

FILE = "privacy.secret"


def secret_in(folder: Path) -> str:
    """The folder's secret of 256 bits, which only its owner may read."""
    path = folder / FILE
    folder.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        found = path.read_text().strip()
        if len(found) != 64:
            raise StateError(f"{path} does not hold a secret of 64 digits") from None
        return found
    with os.fdopen(descriptor, "w") as file:
        made = secrets.token_hex(32)
        file.write(made)
    return made
