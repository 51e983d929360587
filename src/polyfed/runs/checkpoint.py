"""Checkpoints: one file with the server's state and the ledger, which names the client states in the store.

Checkpoints are written atomically, and the two most recent ones are kept. A digest detects damaged files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from polyfed import profiling
from polyfed.core.codec import decode, encode
from polyfed.core.ledger import Ledger
from polyfed.core.payload import State
from polyfed.errors import PayloadError, StateError
from polyfed.runs import safe_files
from polyfed.runs.atomic_files import write_atomically
from polyfed.runs.records import RoundRecord
from polyfed.runs.state_store import FolderStore, RemoteStates

KEPT = 2  # checkpoints
CLIENT_STATES = "clients"  # subfolder with the client states


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run between two rounds."""

    round: int
    server: State
    ledger: Ledger
    history: list[RoundRecord]


class Checkpoints:
    """The checkpoints of a run, oldest first.

    `local_states` is False if the clients keep their own states, as real sites do.
    """

    def __init__(self, folder: Path, *, local_states: bool = True) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.store = FolderStore(folder / CLIENT_STATES) if local_states else RemoteStates()

    def paths(self) -> list[Path]:
        return sorted(self.folder.glob("round-*.polyfed"))

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint atomically and delete all but the two most recent ones."""
        with profiling.span("write", f"checkpoint {checkpoint.round}"):
            self._write(checkpoint)

    def _write(self, checkpoint: Checkpoint) -> None:
        ledger = checkpoint.ledger
        self.store.sync(ledger.versions)
        metadata = {
            "round": checkpoint.round,
            "calls": ledger.calls,
            "versions": ledger.versions,
            "digests": ledger.digests,
            "alive": ledger.alive,
            "history": [record.to_dict() for record in checkpoint.history],
        }
        frame = encode({"facts": json.dumps(metadata), "server": checkpoint.server})
        write_atomically(self.folder / f"round-{checkpoint.round:06d}.polyfed", frame.data)
        for old in self.paths()[:-KEPT]:
            old.unlink(missing_ok=True)

    def load_latest(self) -> tuple[Checkpoint | None, list[dict[str, int]], list[str]]:
        """Return the latest valid checkpoint, the client states of older ones, and a message per damaged file."""
        latest: Checkpoint | None = None
        older_states: list[dict[str, int]] = []
        damaged: list[str] = []
        for path in reversed(self.paths()):
            try:
                checkpoint = self._read(path)
            except (StateError, PayloadError) as error:
                damaged.append(f"{path.name} is damaged and was skipped: {error}")
                continue
            if latest is None:
                latest = checkpoint
            else:
                older_states.append(checkpoint.ledger.versions)
        return latest, older_states, damaged

    def _read(self, path: Path) -> Checkpoint:
        try:
            saved = decode(safe_files.read_bytes(path))
        except OSError as error:
            raise StateError(f"{path} cannot be read: {error.strerror}") from None
        try:
            metadata = json.loads(saved.text("facts"))
            server = saved["server"]
            ledger = Ledger(metadata["calls"], metadata["versions"], metadata["digests"], metadata["alive"])
            self.store.verify(ledger.versions, ledger.digests)
            state = dict(server) if isinstance(server, Mapping) else {}
            history = [RoundRecord.from_dict(record) for record in metadata["history"]]
            return Checkpoint(metadata["round"], state, ledger, history)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise StateError(f"{path} holds no checkpoint that polyfed wrote: {error}") from None
