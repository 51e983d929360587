"""New files for keys and certificates: never overwritten, and readable only by those who may read them."""

from __future__ import annotations

import os
from pathlib import Path

from polyfed.errors import InputError


def check_absent(*files: Path) -> None:
    """Raise `InputError` if one of the files exists."""
    for file in files:
        if file.exists():
            raise InputError(f"{file} exists and is not overwritten; choose another folder, or move it away first")


def write_new(file: Path, content: bytes, *, secret: bool) -> None:
    """Write a new file. A secret one can be read by its owner alone, from its first byte on."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644)
        with os.fdopen(descriptor, "wb") as out:
            out.write(content)
    except OSError as error:
        raise InputError(f"{file} cannot be written: {error.strerror}") from None
