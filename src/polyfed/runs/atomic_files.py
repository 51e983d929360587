"""Atomic file writes: write to a temporary file, then rename it into place."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from polyfed.errors import InputError, StateError


def write_atomically(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Write a file atomically: readers see the old or the new content. `durable` waits until it is on disk."""
    write_parts_atomically(path, [data], durable=durable)


def write_parts_atomically(
    path: Path, parts: Iterable[bytes | memoryview], *, durable: bool = True, spare: Path | None = None
) -> None:
    """Write a file atomically from parts, which are not joined before. `durable` waits until it is on disk.

    `spare` is a file in the same folder that is no longer needed. If it exists, it is overwritten and renamed.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.new")
    try:
        with _open_spare(spare, temporary) or temporary.open("wb") as file:
            file.writelines(parts)
            file.truncate()
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
        if durable:
            sync_folder(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if not isinstance(error, OSError):
            raise
        raise StateError(f"{path} could not be written: {error.strerror or error}") from None


def _open_spare(spare: Path | None, temporary: Path) -> BinaryIO | None:
    """Rename a spare file to `temporary` and open it. Links are deleted: writing would change what they point to."""
    if spare is None:
        return None
    with contextlib.suppress(OSError):
        spare.replace(temporary)
        status = temporary.lstat()
        if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
            return temporary.open("r+b")
    with contextlib.suppress(OSError):
        temporary.unlink()
    return None


def check_file_writable(path: Path) -> None:
    """Raise `InputError` if a file cannot be created at this path. Leave nothing behind."""
    if path.is_dir():
        raise InputError(f"{path} is a folder; name a file in it")
    if not path.parent.is_dir():
        raise InputError(f"{path} cannot be written: there is no folder {path.parent}")
    _check_folder_writable(path.parent, path)


def check_folder_creatable(path: Path) -> None:
    """Raise `InputError` if a folder does not exist and cannot be created, or cannot be written to."""
    existing = next((folder for folder in (path, *path.absolute().parents) if folder.exists()), Path("/"))
    if not existing.is_dir():
        raise InputError(f"{path} cannot be created: {existing} is not a folder")
    _check_folder_writable(existing, path)


def _check_folder_writable(folder: Path, target: Path) -> None:
    try:
        with tempfile.TemporaryFile(dir=folder):  # it has no name, or loses it at once
            pass
    except OSError as error:
        raise InputError(f"{target} cannot be written: {folder}: {error.strerror or error}") from None


def sync_folder(folder: Path) -> None:
    """Flush the renames inside a folder to disk, if the system supports it."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sync_file(path: Path) -> None:
    """Flush a file that another process may have written to disk."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StateError(f"{path} could not be flushed to disk: {error.strerror or error}") from None
