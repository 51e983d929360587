"""Origin of a run folder: whether this user made it on this machine.

A run folder names code to import. That is right for one's own runs, but a folder may come from somebody else. Every
user has a key in `~/.config/polyfed` (or $POLYFED_CONFIG), and every new run folder has a file `.origin` with a keyed
digest of its config and its code. A folder that was made elsewhere, or changed since, does not have the right digest.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
from pathlib import Path

from polyfed.errors import StateError
from polyfed.runs import safe_files
from polyfed.runs.atomic_files import write_atomically
from polyfed.runs.secret import derive_key, load_secret

FILE = ".origin"
SIGNED = ("config.yaml", "user_code.py")  # files that name or hold code
KEY_FILE = "user.key"


def write_origin(folder: Path) -> None:
    """Write the origin of a new run folder. Without a home folder for the key, there is none."""
    with contextlib.suppress(OSError, StateError):
        write_atomically(folder / FILE, _digest(folder).encode())


def is_own(folder: Path) -> bool:
    """Return whether this user made a run folder on this machine, and its config and code have not changed since."""
    try:
        return hmac.compare_digest(safe_files.read_text(folder / FILE), _digest(folder))
    except (OSError, ValueError, TypeError, StateError):
        return False


def _digest(folder: Path) -> str:
    home = Path(os.environ.get("POLYFED_CONFIG") or Path.home() / ".config" / "polyfed")
    contents = hashlib.sha256()
    for name in SIGNED:
        path = folder / name
        content = safe_files.read_bytes(path) if path.exists() else b""
        contents.update(hashlib.sha256(content).digest())
    return derive_key(load_secret(home, KEY_FILE), "run folder", contents.hexdigest())
