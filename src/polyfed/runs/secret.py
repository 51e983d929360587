"""Secret of a site or a run folder, created on first use. Noise for differential privacy is derived from it."""

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


def load_secret(folder: Path, name: str = FILE) -> str:
    """Return the 256-bit secret of a folder. A new secret is on disk, readable by its owner only, before use."""
    path = folder / name
    folder.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        _create(path)
    secret = path.read_text().strip()
    if len(secret) != 64:
        raise StateError(f"{path} does not hold a secret of 64 hexadecimal digits")
    return secret


def _create(path: Path) -> None:
    """Write a temporary file and link it into place. If two processes do so at once, both use the first secret."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.new")
    try:
        temporary.unlink(missing_ok=True)
        with os.fdopen(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)
        except FileExistsError:
            pass
        finally:
            temporary.unlink()
        sync_folder(path.parent)
    except OSError as error:
        raise StateError(f"{path} could not be written: {error.strerror or error}") from None


def derive_key(secret: str, *purpose: str) -> str:
    """Derive a purpose-specific key from a secret. Return an empty key if the secret is empty."""
    label = "\0".join(purpose).encode()
    return hmac.new(secret.encode(), label, hashlib.sha256).hexdigest() if secret else ""
