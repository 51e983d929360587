"""The coordinator's registry of sites: which name belongs to which public key, and which keys are revoked."""

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

from polyfed.deploy.certificates import CertificateFolder
from polyfed.deploy.keys import PublicKey, check_site_name, parse_public_key
from polyfed.errors import InputError, StateError, nearest
from polyfed.runs.atomic_files import write_atomically

if TYPE_CHECKING:
    from polyfed.deploy.superlink_control import ControlClient

SiteStatus = Literal["admitted", "revoked", "unknown"]


@dataclass(frozen=True)
class RegistryEntry:
    """One key of one site. A site that received a new key has one entry for each key."""

    name: str
    key: str
    revoked: bool = False


class SiteRegistry:
    """The registry in `home`/sites.json. Other processes may change it; every query reads its current content."""

    def __init__(self, home: Path) -> None:
        self.file = home / "sites.json"
        self._lock = threading.Lock()
        self._version: tuple[int, int, int] | None = None  # of the file that was read last
        self._entries: tuple[RegistryEntry, ...] = ()
        self._by_key: dict[bytes, RegistryEntry] = {}

    def entries(self) -> tuple[RegistryEntry, ...]:
        """Return all keys that were ever admitted, sorted by site name."""
        with self._lock:
            self._reload()
            return self._entries

    def sites(self) -> dict[str, PublicKey]:
        """Return the admitted sites, sorted by name."""
        keys = {entry.name: parse_public_key(entry.key) for entry in self.entries() if not entry.revoked}
        return {name: key for name, key in keys.items() if self.status(key.pem)[0] == "admitted"}

    def status(self, pem: bytes) -> tuple[SiteStatus, str]:
        """Return the status of a public key (PEM), and the name of its site."""
        with self._lock:
            self._reload()
            entry = self._by_key.get(pem)
        if entry is None:
            return "unknown", ""
        return ("revoked" if entry.revoked else "admitted"), entry.name

    def admit(self, name: str, key: PublicKey) -> None:
        """Admit a key under a name. Raise `InputError` if either is already in use."""
        check_site_name(name)
        with self._exclusive():
            self._admit(name, key)

    def _admit(self, name: str, key: PublicKey) -> None:
        entries = self.entries()
        for entry in entries:
            same_key = parse_public_key(entry.key).pem == key.pem
            if same_key and entry.revoked:
                raise InputError(
                    f"this key was revoked (site '{entry.name}') and cannot be admitted again; create a new one with "
                    "`polyfed keys new site`"
                )
            if same_key:
                raise InputError(f"this key is already admitted, as site '{entry.name}'")
            if entry.name == name and not entry.revoked:
                raise InputError(
                    f"site '{name}' exists with another key; revoke it first: polyfed sites revoke {name}"
                )
        self._write((*entries, RegistryEntry(name, key.openssh)))

    def revoke(self, name: str) -> None:
        """Refuse a site's key from now on."""
        with self._exclusive():
            entries = self.entries()
            admitted = [entry.name for entry in entries if not entry.revoked]
            if name not in admitted:
                raise InputError(f"no site '{name}' is admitted; {nearest(name, admitted)}")
            self._write(tuple(RegistryEntry(e.name, e.key, revoked=True) if e.name == name else e for e in entries))

    def apply(self, control: ControlClient) -> None:
        """Register exactly the admitted sites at a running SuperLink."""
        with self._exclusive():
            wanted = {key.pem: name for name, key in self.sites().items()}
            registered = {node.public_key: node for node in control.nodes()}
            for key, node in registered.items():
                if key not in wanted:
                    control.unregister(node.id)
            for key, name in wanted.items():
                if key not in registered:
                    control.register(name, key)

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Let one process at a time read and change the registry. Otherwise a revocation could be lost."""
        _make_folder(self.file.parent)
        with self.file.with_name("sites.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed
            yield

    def _reload(self) -> None:
        """Read the file if it has changed since it was last read."""
        try:
            stat = self.file.stat()
        except FileNotFoundError:
            self._version, self._entries, self._by_key = None, (), {}
            return
        version = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        if version == self._version:
            return
        try:
            content = json.loads(self.file.read_text())["sites"]
            entries = tuple(RegistryEntry(str(e["name"]), str(e["key"]), bool(e["revoked"])) for e in content)
            # if a key occurs twice, its revocation counts
            by_key = {parse_public_key(e.key).pem: e for e in sorted(entries, key=lambda entry: entry.revoked)}
        except (OSError, ValueError, KeyError, TypeError, InputError) as error:
            # never guess which sites are admitted
            raise StateError(f"the registry of sites {self.file} is damaged: {error}") from None
        self._version, self._entries, self._by_key = version, entries, by_key

    def _write(self, entries: tuple[RegistryEntry, ...]) -> None:
        ordered = sorted(entries, key=lambda entry: (entry.name, not entry.revoked))
        content = json.dumps({"sites": [asdict(entry) for entry in ordered]}, indent=1)
        _replace(self.file, content)


# The address of a running coordinator's SuperLink, for other commands on the same machine.


def publish_address(home: Path, address: str) -> None:
    """Record that a SuperLink answers at `address` (loopback), until `withdraw_address`."""
    _replace(home / "control.json", json.dumps({"address": address, "pid": os.getpid()}))


def withdraw_address(home: Path) -> None:
    """Remove the record of a running SuperLink."""
    (home / "control.json").unlink(missing_ok=True)


def running_superlink(home: Path) -> tuple[str, Path] | None:
    """Return address and authority certificate of the running coordinator's SuperLink, or None if none runs."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        record = json.loads((home / "control.json").read_text())
        os.kill(int(record["pid"]), 0)
        return str(record["address"]), CertificateFolder(internal_folder(home)).authority
    return None


def internal_folder(home: Path) -> Path:
    """Return the folder of the certificates between gateway and SuperLink, which are for loopback only."""
    return home / "internal"


def _replace(file: Path, content: str) -> None:
    _make_folder(file.parent)
    write_atomically(file, content.encode())


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise InputError(f"{folder} cannot be created: {error.strerror}") from None
