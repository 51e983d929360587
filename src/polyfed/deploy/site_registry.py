"""The coordinator's list of sites: which name belongs to which public key, and who is admitted or revoked."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from polyfed.deploy.keys import Authority, PublicKey, checked_name, public_key
from polyfed.errors import InputError, StateError, nearest
from polyfed.runs.atomic_files import write_atomically

if TYPE_CHECKING:
    from polyfed.deploy.control import Control

Standing = Literal["admitted", "revoked", "unknown"]


@dataclass(frozen=True)
class Entry:
    """One key of one site. A site that was given a new key has a line for each."""

    name: str
    key: str
    revoked: bool = False


class Registry:
    """The list in `home`/sites.json. Other processes may change the file; every look sees what it says then."""

    def __init__(self, home: Path) -> None:
        self.file = home / "sites.json"
        self._lock = threading.Lock()
        self._seen: tuple[int, int, int] | None = None
        self._entries: tuple[Entry, ...] = ()
        self._by_key: dict[bytes, Entry] = {}

    def entries(self) -> tuple[Entry, ...]:
        """All keys there ever were, by name."""
        with self._lock:
            self._look()
            return self._entries

    def sites(self) -> dict[str, PublicKey]:
        """The admitted sites, in the order of their names."""
        found = {entry.name: public_key(entry.key) for entry in self.entries() if not entry.revoked}
        return {name: key for name, key in found.items() if self.standing(key.encoded)[0] == "admitted"}

    def standing(self, encoded: bytes) -> tuple[Standing, str]:
        """What holds for a public key (in Flower's bytes), and the name it belongs to."""
        with self._lock:
            self._look()
            entry = self._by_key.get(encoded)
        if entry is None:
            return "unknown", ""
        return ("revoked" if entry.revoked else "admitted"), entry.name

    def admit(self, name: str, key: PublicKey) -> None:
        """Let a key in under a name; both must be free."""
        checked_name(name)
        with self._changing():
            self._admit(name, key)

    def _admit(self, name: str, key: PublicKey) -> None:
        entries = self.entries()
        for entry in entries:
            same = public_key(entry.key).encoded == key.encoded
            if same and entry.revoked:
                raise InputError(
                    f"this key was revoked (site '{entry.name}') and stays so; the site makes a new one with "
                    "`polyfed keys new site`"
                )
            if same:
                raise InputError(f"this key is admitted already, as site '{entry.name}'")
            if entry.name == name and not entry.revoked:
                raise InputError(
                    f"there is a site '{name}' with another key; revoke it first: polyfed sites revoke {name}"
                )
        self._write((*entries, Entry(name, key.line)))

    def revoke(self, name: str) -> None:
        """From now on the site's key is refused."""
        with self._changing():
            entries = self.entries()
            admitted = [entry.name for entry in entries if not entry.revoked]
            if name not in admitted:
                raise InputError(f"no site '{name}' is admitted; {nearest(name, admitted)}")
            self._write(tuple(Entry(e.name, e.key, revoked=True) if e.name == name else e for e in entries))

    def apply(self, control: Control) -> None:
        """Make a running SuperLink know exactly the admitted sites."""
        with self._changing():
            wanted = {key.encoded: name for name, key in self.sites().items()}
            there = {node.public_key: node for node in control.nodes()}
            for key, node in there.items():
                if key not in wanted:
                    control.unregister(node.id)
            for key, name in wanted.items():
                if key not in there:
                    control.register(name, key)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """One process at a time reads the list and writes another: else a revocation could be lost."""
        _make(self.file.parent)
        with self.file.with_name("sites.lock").open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)  # until it is closed
            yield

    def _look(self) -> None:
        """Read the file if it is another one than last time."""
        try:
            found = self.file.stat()
        except FileNotFoundError:
            self._seen, self._entries, self._by_key = None, (), {}
            return
        seen = (found.st_ino, found.st_mtime_ns, found.st_size)
        if seen == self._seen:
            return
        try:
            read = json.loads(self.file.read_text())["sites"]
            entries = tuple(Entry(str(one["name"]), str(one["key"]), bool(one["revoked"])) for one in read)
            # where a key stands twice, its revocation is what holds
            by_key = {public_key(e.key).encoded: e for e in sorted(entries, key=lambda entry: entry.revoked)}
        except (OSError, ValueError, KeyError, TypeError, InputError) as error:
            # never a guess about who is admitted
            raise StateError(f"the list of sites {self.file} is damaged: {error}") from None
        self._seen, self._entries, self._by_key = seen, entries, by_key

    def _write(self, entries: tuple[Entry, ...]) -> None:
        ordered = sorted(entries, key=lambda entry: (entry.name, not entry.revoked))
        content = json.dumps({"sites": [asdict(entry) for entry in ordered]}, indent=1)
        _replace(self.file, content)


# where a running coordinator answers, for the commands beside it


def announce(home: Path, address: str) -> None:
    """Say that a SuperLink answers at `address` (loopback) until `retire`."""
    _replace(home / "control.json", json.dumps({"address": address, "pid": os.getpid()}))


def retire(home: Path) -> None:
    """No coordinator runs here any more."""
    (home / "control.json").unlink(missing_ok=True)


def running(home: Path) -> tuple[str, Path] | None:
    """Where the SuperLink of the coordinator that runs in `home` answers, and by which authority it is known."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        said = json.loads((home / "control.json").read_text())
        os.kill(int(said["pid"]), 0)
        return str(said["address"]), Authority(internal(home)).certificate
    return None


def internal(home: Path) -> Path:
    """The folder of the authority that signs the SuperLink's own certificate, for loopback only."""
    return home / "internal"


def _replace(file: Path, content: str) -> None:
    _make(file.parent)
    write_atomically(file, content.encode())


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise InputError(f"{folder} cannot be made: {error.strerror}") from None
