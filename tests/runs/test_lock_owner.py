"""The process that a lock file records: whether it works on the run, and how it is asked to stop."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from polyfed.errors import RunError
from polyfed.runs import lock_owner
from polyfed.runs.lock_owner import SILENCE_LIMIT, LockOwner


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / ".lock"
    path.touch()
    return path


def owner_of(process: subprocess.Popen[bytes]) -> LockOwner:
    return LockOwner(process.pid, lock_owner._start_time(process.pid), platform.node(), True)


def test_a_process_that_holds_the_lock_is_asked_to_stop(lock: Path) -> None:
    with lock.open() as file, subprocess.Popen(["sleep", "600"], stdin=file) as process:
        owner = owner_of(process)
        assert owner.alive() and owner.active(0.0)
        owner.stop(lock)
        assert process.wait() == -signal.SIGTERM
    assert not owner.alive() and not owner.active(0.0)
    with pytest.raises(RunError, match="the process of this run has ended"):
        owner.stop(lock)


def test_other_processes_are_never_signalled(lock: Path) -> None:
    """A lock file may name any process: one that does not have it open, or a later one with the same number."""
    with subprocess.Popen(["sleep", "600"]) as process:
        for owner in (owner_of(process), replace(owner_of(process), start_time="1")):
            with pytest.raises(RunError, match="the process of this run has ended"):
                owner.stop(lock)
        assert process.poll() is None
        process.kill()


def test_processes_that_cannot_be_stopped_from_here(lock: Path) -> None:
    owner = LockOwner(1, "1", "elsewhere", True)
    with pytest.raises(RunError, match="belongs to a process on elsewhere"):
        owner.stop(lock)
    with pytest.raises(RunError, match="belongs to a thread of a program"):
        replace(owner, host=platform.node(), stoppable=False).stop(lock)
    assert owner.active(last_write=100.0, now=100.0 + SILENCE_LIMIT / 2)
    assert not owner.active(last_write=100.0, now=100.0 + 2 * SILENCE_LIMIT)


def test_a_lock_file_records_this_process(lock: Path) -> None:
    with lock.open("r+") as file:
        lock_owner.write(file.fileno())
        owner = lock_owner.read(lock)
        assert owner is not None and (owner.pid, owner.stoppable) == (os.getpid(), True) and owner.alive()
        in_thread = threading.Thread(target=lock_owner.write, args=(file.fileno(),))
        in_thread.start()
        in_thread.join()
        owner = lock_owner.read(lock)
        assert owner is not None and not owner.stoppable
        lock_owner.erase(file.fileno())
    assert lock_owner.read(lock) is None


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"pid": 0, "began": "1", "host": "a", "listens": true}', '{"pid": 5, "began": 1}']
)
def test_a_damaged_lock_file_has_no_owner(lock: Path, text: str) -> None:
    lock.write_text(text)
    assert lock_owner.read(lock) is None
