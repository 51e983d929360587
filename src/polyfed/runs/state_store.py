"""Client states in a folder: one file per client and call, whole or not there."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from polyfed.core.codec import read_header
from polyfed.errors import StateError
from polyfed.runs.atomic_files import sync_file, sync_folder, write_atomically

RELEASES = ".releases"  # the end of a file's name; states end in a number


class FolderStore:
    """States by client and by the number of the call that led to them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, client: str, version: int) -> Path:
        return self.folder / f"{quote(client, safe='')}.{version}"

    def write(self, client: str, version: int, frame: bytes) -> None:
        # not forced to the disk here: a checkpoint does that for the states it refers to
        write_atomically(self.path(client, version), frame, durable=False)

    def read(self, client: str, version: int) -> bytes:
        try:
            return self.path(client, version).read_bytes()
        except OSError as error:
            raise StateError(
                f"the state of client {client} after call {version} cannot be read in {self.folder}: {error.strerror}"
            ) from None

    def discard(self, client: str, versions: Sequence[int]) -> None:
        for version in versions:
            with contextlib.suppress(OSError):
                self.path(client, version).unlink()

    def secure(self, versions: Mapping[str, int]) -> None:
        """Wait until these states are on the disk."""
        for client, version in versions.items():
            sync_file(self.path(client, version))
        sync_folder(self.folder)

    def verify(self, versions: Mapping[str, int], digests: Mapping[str, str]) -> None:
        """Every one of these states is there, whole, and the one it was."""
        for client, version in versions.items():
            frame = self.read(client, version)
            read_header(frame)
            if frame[4:36].hex() != digests[client]:
                raise StateError(f"the state of client {client} is not the one that was saved")

    def read_releases(self, client: str) -> bytes:
        """What a client has released so far, whatever its state; empty if there is no record yet."""
        try:
            return self._releases(client).read_bytes()
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise StateError(
                f"what client {client} has released cannot be read in {self.folder}: {error.strerror}"
            ) from None

    def write_releases(self, client: str, data: bytes) -> None:
        write_atomically(self._releases(client), data)

    def _releases(self, client: str) -> Path:
        return self.folder / f"{quote(client, safe='')}{RELEASES}"

    def keep_only(self, needed: Sequence[Mapping[str, int]]) -> None:
        """Remove every file that none of these sets of states refers to, such as those of a run that was killed."""
        wanted = {self.path(client, version).name for states in needed for client, version in states.items()}
        for path in self.folder.iterdir():
            if path.name not in wanted and path.suffix != RELEASES:
                with contextlib.suppress(OSError):
                    path.unlink()


class RemoteStates:
    """States that their owners keep: there is nothing here to secure, to verify or to remove."""

    def secure(self, versions: Mapping[str, int]) -> None: ...

    def verify(self, versions: Mapping[str, int], digests: Mapping[str, str]) -> None: ...

    def keep_only(self, needed: Sequence[Mapping[str, int]]) -> None: ...
