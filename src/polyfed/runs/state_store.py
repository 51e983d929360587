"""Client states in a folder: one file per client and call, written atomically."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

from polyfed.core.engine import FrameBytes
from polyfed.core.ledger import Ledger
from polyfed.core.message_header import read_header
from polyfed.core.state_digest import content_digests
from polyfed.errors import StateError
from polyfed.runs import safe_files
from polyfed.runs.atomic_files import sync_file, sync_folder, write_atomically, write_parts_atomically

SYNC_THREADS = 16
RELEASES = ".releases"  # suffix of the files that count releases; state files end in a number


class FolderStore:
    """Client states on disk, by client and by the number of the call that produced them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._synced: dict[str, int] = {}  # states that are known to be on disk: version by client
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, client: str, version: int) -> Path:
        return self.folder / f"{quote(client, safe='')}.{version}"

    def write(self, client: str, version: int, frame: FrameBytes, discard: Sequence[int] = ()) -> None:
        # Not flushed to disk here: a checkpoint does this for the states it names. A file that is no longer needed is
        # overwritten, because new memory for 5 MB takes the system four times as long as the copy.
        spare = self.path(client, discard[0]) if discard else None
        write_parts_atomically(self.path(client, version), frame, durable=False, spare=spare)
        self.delete(client, discard[1:])

    def read(self, client: str, version: int) -> bytes:
        try:
            return safe_files.read_bytes(self.path(client, version))
        except OSError as error:
            raise StateError(
                f"the state of client {client} after call {version} cannot be read in {self.folder}: {error.strerror}"
            ) from None

    def delete(self, client: str, versions: Sequence[int]) -> None:
        for version in versions:
            with contextlib.suppress(OSError):
                self.path(client, version).unlink()

    def sync(self, versions: Mapping[str, int]) -> None:
        """Flush those of these states to disk that are new since the last call."""
        changed = {client: version for client, version in versions.items() if self._synced.get(client) != version}
        if changed:
            # several at a time: the file system then writes its journal once for all of them
            with ThreadPoolExecutor(SYNC_THREADS) as threads:
                list(threads.map(lambda one: sync_file(self.path(*one)), changed.items()))
            sync_folder(self.folder)
        self._synced.update(changed)

    def content_digests(self, ledger: Ledger) -> dict[str, str]:
        """Return a SHA-256 digest of every client's current state, for `state_hash`."""
        return content_digests(self, ledger.versions)

    def verify(self, versions: Mapping[str, int], digests: Mapping[str, str]) -> None:
        """Raise StateError unless all these states exist, are undamaged and have the recorded digests."""
        for client, version in versions.items():
            frame = self.read(client, version)
            read_header(frame)
            if frame[4:36].hex() != digests[client]:
                raise StateError(f"the state of client {client} is not the one that was saved")
        self._synced.update(versions)  # the checkpoint that names them was written after them

    def read_releases(self, client: str) -> bytes:
        """Return the record of what a client has released so far, or empty bytes if there is none."""
        try:
            return self._releases(client).read_bytes()
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise StateError(
                f"the record of what client {client} has released cannot be read in {self.folder}: {error.strerror}"
            ) from None

    def write_releases(self, client: str, data: bytes) -> None:
        write_atomically(self._releases(client), data)

    def _releases(self, client: str) -> Path:
        return self.folder / f"{quote(client, safe='')}{RELEASES}"

    def keep_only(self, needed: Sequence[Mapping[str, int]]) -> None:
        """Delete all states but these, for example the states of rounds after the last checkpoint of a killed run."""
        wanted = {self.path(client, version).name for states in needed for client, version in states.items()}
        for path in self.folder.iterdir():
            if path.name not in wanted and path.suffix != RELEASES:
                with contextlib.suppress(OSError):
                    path.unlink()


class RemoteStates:
    """Store of a run whose clients keep their own states. It does nothing."""

    def sync(self, versions: Mapping[str, int]) -> None: ...

    def content_digests(self, ledger: Ledger) -> dict[str, str]:
        """Return the digests that the clients sent."""
        return ledger.digests

    def verify(self, versions: Mapping[str, int], digests: Mapping[str, str]) -> None: ...

    def keep_only(self, needed: Sequence[Mapping[str, int]]) -> None: ...
