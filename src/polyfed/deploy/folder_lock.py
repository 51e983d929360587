"""Lock of a folder that only one coordinator or site may use at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from polyfed.errors import InputError


@contextlib.contextmanager
def exclusive(folder: Path, user: str, option: str) -> Iterator[None]:
    """Hold the lock of an existing folder. Raise `InputError` if another process holds it.

    `user` and `option` are for the message: what uses the folder, and the option that chooses another one. The lock
    ends with the process, even if it is killed.
    """
    descriptor = os.open(folder / ".lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise InputError(f"another {user} uses {folder}; stop it, or choose another folder with {option}") from None
    else:
        yield
    finally:
        os.close(descriptor)
