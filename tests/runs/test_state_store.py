"""Files of a run that are flushed to disk: client states, partition."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from polyfed.core.codec import encode
from polyfed.data import partition_file
from polyfed.runs.state_store import FolderStore


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are flushed to disk. They are flushed all the same."""
    names: list[str] = []
    fsync = os.fsync

    def recorded(descriptor: int) -> None:
        names.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", recorded)
    return names


def test_a_checkpoint_flushes_only_states_that_changed(tmp_path: Path, flushed: list[str]) -> None:
    store = FolderStore(tmp_path / "clients")
    frame = encode({"x": 1})
    for client in ("a", "b", "c"):
        store.write(client, 1, frame.data)
    store.sync({"a": 1, "b": 1, "c": 1})
    assert sorted(flushed) == ["a.1", "b.1", "c.1", "clients"]
    flushed.clear()
    store.write("b", 2, frame.data)
    store.sync({"a": 1, "b": 2, "c": 1})
    assert flushed == ["b.2", "clients"]
    flushed.clear()
    store.sync({"a": 1, "b": 2, "c": 1})
    assert flushed == []
    resumed = FolderStore(tmp_path / "clients")
    resumed.verify({"a": 1, "b": 2}, {"a": frame.digest, "b": frame.digest})
    resumed.sync({"a": 1, "b": 2, "c": 1})
    assert flushed == ["c.1", "clients"]


def test_a_partition_is_flushed_before_it_is_renamed(tmp_path: Path, flushed: list[str]) -> None:
    """A file that is renamed but not flushed may be empty after a failure of the disk."""
    indices = (np.arange(3),)
    partition_file.save(partition_file.Partition(indices, indices), tmp_path / "partition.npz")
    assert len(flushed) == 1 and flushed[0].startswith(".partition.npz-")
