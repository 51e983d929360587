"""Read files of run folders that may be damaged, or made by somebody else.

Only regular files are read. A symbolic link could show a file from elsewhere, and a pipe would block the reader.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

MAX_SIZE = 1 << 30  # bytes of a file that is read as a whole
MAX_LINE = 1 << 28  # bytes of one line; longer lines are skipped


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading. Raise OSError if it is a symbolic link, a folder, a pipe or a device."""
    return _checked(path, os.O_RDONLY, "rb")


def _checked(path: Path, flags: int, mode: str) -> BinaryIO:
    try:
        # without O_NONBLOCK, opening a pipe waits for a writer
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a symbolic link", str(path)) from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a file", str(path))
        return cast("BinaryIO", os.fdopen(descriptor, mode))
    except BaseException:
        os.close(descriptor)
        raise


def open_for_append(path: Path) -> BinaryIO:
    """Open a file for appending and reading, and create it if there is none. Raise OSError as `open_regular` does."""
    return _checked(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, "a+b")


def open_lock(path: Path) -> int:
    """Open or create a lock file and return its descriptor. Raise OSError as `open_regular` does."""
    with _checked(path, os.O_RDWR | os.O_CREAT, "r+b") as file:
        return os.dup(file.fileno())


def ends_within_line(file: BinaryIO) -> bool:
    """Return whether the last line of an open file has no end."""
    size = file.seek(0, os.SEEK_END)
    if size == 0:
        return False
    file.seek(-1, os.SEEK_END)
    return file.read(1) != b"\n"


def read_bytes(path: Path) -> bytes:
    """Return the content of a file. Raise OSError if it cannot be read."""
    with open_regular(path) as file:
        return file.read()


def read_text(path: Path) -> str:
    """Return the text of a file. Raise OSError if it cannot be read, ValueError if it is too large or not UTF-8."""
    with open_regular(path) as file:
        data = file.read(MAX_SIZE + 1)
    if len(data) > MAX_SIZE:
        raise ValueError(f"it has more than {MAX_SIZE >> 20} MiB")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not UTF-8 text") from None


def read_json(path: Path) -> Any:
    """Return the content of a JSON file. Raise OSError if it cannot be read, and ValueError if it is not JSON."""
    try:
        return json.loads(read_text(path))
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None


def reason(error: Exception) -> str:
    """Return why a file could not be read, without the path that messages of the system contain."""
    return (isinstance(error, OSError) and error.strerror) or " ".join(str(error).split())[:300]


def parse_event(line: bytes | str) -> dict[str, Any] | None:
    """Return the event in a line of `events.jsonl`, or None if the line is damaged."""
    try:
        event = json.loads(line.decode() if isinstance(line, bytes) else line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file without their ends. Raise OSError if it cannot be read."""
    with open_regular(path) as file:
        while line := file.readline(MAX_LINE):
            if len(line) < MAX_LINE:
                yield line.rstrip(b"\n")
