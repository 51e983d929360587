"""A secret that a party keeps in a folder of its own and tells nobody, made when it is first asked for."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import threading
from pathlib import Path

from polyfed.errors import StateError
from polyfed.runs.atomic_files import sync_folder

FILE = "privacy.secret"


def secret_in(folder: Path) -> str:
    """The folder's secret of 256 bits, which only its owner may read; whole and on the disk before it is used."""
    path = folder / FILE
    folder.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        _make(path)
    found = path.read_text().strip()
    if len(found) != 64:
        raise StateError(f"{path} does not hold a secret of 64 digits")
    return found


def _make(path: Path) -> None:
    """Written beside its place, then linked into it: of two that make it at once, the first one's counts for both."""
    beside = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.new")
    try:
        beside.unlink(missing_ok=True)
        with os.fdopen(os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(beside, path)
        except FileExistsError:
            pass
        finally:
            beside.unlink()
        sync_folder(path.parent)
    except OSError as error:
        raise StateError(f"{path} could not be written: {error.strerror or error}") from None


def derived(secret: str, *purpose: str) -> str:
    """A secret for one purpose, which tells nothing of the other, nor of those for other purposes; none of none."""
    words = "\0".join(purpose).encode()
    return hmac.new(secret.encode(), words, hashlib.sha256).hexdigest() if secret else ""
