"""Files that are either whole or not there: written beside their place, then moved into it."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

from polyfed.errors import StateError


def write_atomically(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Write a file so that a reader sees the old content or the new, never a part. `durable` waits for the disk."""
    beside = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.new")
    try:
        with beside.open("wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        beside.replace(path)
        if durable:
            sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise StateError(f"{path} could not be written: {error.strerror or error}") from None


def sync_folder(folder: Path) -> None:
    """Make renames inside a folder survive a power failure, where the system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sync_file(path: Path) -> None:
    """Make the content of a file that another process wrote survive a power failure."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StateError(f"{path} could not be secured on disk: {error.strerror or error}") from None
