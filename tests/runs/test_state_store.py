"""Files of a run that are flushed to disk: client states, partition."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from polyfed.core.codec import encode
from polyfed.core.frame_digest import SHA256, XXH3
from polyfed.core.ledger import Ledger
from polyfed.data import partition_file
from polyfed.errors import StateError
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
        store.write(client, 1, [frame.data])
    store.sync({"a": 1, "b": 1, "c": 1})
    assert sorted(flushed) == ["a.1", "b.1", "c.1", "clients"]
    flushed.clear()
    store.write("b", 2, [frame.data])
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


def test_a_new_state_takes_the_file_of_one_that_is_no_longer_needed(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.write("a", 1, [b"a long first state"])
    store.write("a", 2, [b"second"])
    first = store.path("a", 1).stat().st_ino
    store.write("a", 3, [b"third"], discard=(1,))
    assert store.path("a", 3).stat().st_ino == first
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a.2": b"second", "a.3": b"third"}
    store.write("a", 4, [b"fourth, which is longer"], discard=(1, 2))  # version 1 does not exist any more
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "a.3": b"third",
        "a.4": b"fourth, which is longer",
    }


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_a_state_that_is_a_link_is_not_written_through(tmp_path: Path, link: Callable[[Path, Path], None]) -> None:
    """A copy of a run folder by hard links keeps its content, and so does a file that a symbolic link names."""
    store, other = FolderStore(tmp_path / "clients"), tmp_path / "other"
    other.write_bytes(b"somebody else's")
    link(other, store.path("a", 1))
    store.write("a", 2, [b"second"], discard=(1,))
    assert other.read_bytes() == b"somebody else's"
    assert [path.name for path in store.folder.iterdir()] == ["a.2"]
    assert store.read("a", 2) == b"second"


def test_digests_for_the_state_hash_do_not_depend_on_the_checksum_of_the_file(tmp_path: Path) -> None:
    store, payload = FolderStore(tmp_path), {"model": {"x": torch.arange(5.0)}, "state": {}}
    store.write("a", 1, [encode(payload, XXH3).data])
    store.write("b", 1, [encode(payload, SHA256).data])
    expected = encode(payload).digest
    assert store.content_digests(Ledger(versions={"a": 1, "b": 1})) == {"a": expected, "b": expected}
    store.path("b", 1).write_bytes(encode(payload).data[:-1] + b"\1")
    with pytest.raises(StateError, match="the state of client b is damaged"):
        store.content_digests(Ledger(versions={"a": 1, "b": 1}))


def test_a_pipe_in_place_of_a_state_does_not_block(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    os.mkfifo(store.path("a", 1))
    store.write("a", 2, [b"second"], discard=(1,))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a.2": b"second"}
