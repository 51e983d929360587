"""Checkpoints: one file with the server's side and the ledger, which refers to client states in the store.

A new checkpoint replaces nothing until it is whole, and the one before is kept. A frame's digest tells a whole file
from a damaged one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from polyfed.core.codec import decode, encode
from polyfed.core.door import Ledger
from polyfed.core.payload import State
from polyfed.errors import PayloadError, StateError
from polyfed.runs.atomic_files import write_atomically
from polyfed.runs.records import RoundRecord
from polyfed.runs.state_store import FolderStore, RemoteStates

KEPT = 2
CLIENT_STATES = "clients"  # the folder of the clients' states, where they are kept here


@dataclass(frozen=True)
class Checkpoint:
    """A run between two rounds."""

    round: int
    server: State
    ledger: Ledger
    history: list[RoundRecord]


class Checkpoints:
    """The checkpoints of a run, newest last."""

    def __init__(self, folder: Path, *, states_here: bool = True) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.store = FolderStore(folder / CLIENT_STATES) if states_here else RemoteStates()

    def paths(self) -> list[Path]:
        return sorted(self.folder.glob("round-*.polyfed"))

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint whole, then let go of those older than the one before."""
        ledger = checkpoint.ledger
        self.store.secure(ledger.versions)
        facts = {
            "round": checkpoint.round,
            "calls": ledger.calls,
            "versions": ledger.versions,
            "digests": ledger.digests,
            "alive": ledger.alive,
            "history": [record.to_dict() for record in checkpoint.history],
        }
        frame = encode({"facts": json.dumps(facts), "server": checkpoint.server})
        write_atomically(self.folder / f"round-{checkpoint.round:06d}.polyfed", frame.data)
        for old in self.paths()[:-KEPT]:
            old.unlink(missing_ok=True)

    def newest(self) -> tuple[Checkpoint | None, list[dict[str, int]], list[str]]:
        """The newest whole checkpoint, the states that older ones refer to, and a sentence about each damaged one."""
        found: Checkpoint | None = None
        older: list[dict[str, int]] = []
        damaged: list[str] = []
        for path in reversed(self.paths()):
            try:
                whole = self._read(path)
            except (StateError, PayloadError) as error:
                damaged.append(f"{path.name} is damaged and was passed over: {error}")
                continue
            if found is None:
                found = whole
            else:
                older.append(whole.ledger.versions)
        return found, older, damaged

    def _read(self, path: Path) -> Checkpoint:
        try:
            saved = decode(path.read_bytes())
        except OSError as error:
            raise StateError(f"{path} cannot be read: {error.strerror}") from None
        facts = json.loads(saved.text("facts"))
        server = saved["server"]
        ledger = Ledger(facts["calls"], facts["versions"], facts["digests"], facts["alive"])
        self.store.verify(ledger.versions, ledger.digests)
        state = dict(server) if isinstance(server, Mapping) else {}
        history = [RoundRecord.from_dict(record) for record in facts["history"]]
        return Checkpoint(facts["round"], state, ledger, history)
