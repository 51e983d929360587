"""Owner of a run folder: the process that holds its lock file.

The lock file records the owner, so that other processes can see whether the run is alive and ask it to stop.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from polyfed.errors import RunError
from polyfed.runs import safe_files

SILENCE_LIMIT = 600.0  # seconds without an event after which an owner on another machine counts as dead


@dataclass(frozen=True)
class LockOwner:
    """A process, identified by its number and start time: process numbers are reused."""

    pid: int
    start_time: str
    host: str
    stoppable: bool  # it handles SIGTERM by writing a checkpoint; a run in a thread does not

    def on_this_machine(self) -> bool:
        return self.host == platform.node()

    def alive(self) -> bool:
        """Return whether the process still exists. Call this only on its own machine."""
        return bool(self.start_time) and _start_time(self.pid) == self.start_time

    def active(self, last_write: float, now: float | None = None) -> bool:
        """Return whether the owner still works on the run.

        Processes of other machines cannot be inspected: they count as active while the run folder changes.
        """
        if self.on_this_machine():
            return self.alive()
        return (time.time() if now is None else now) - last_write < SILENCE_LIMIT

    def stop(self, lock: Path) -> None:
        """Ask the process to stop after its current round. Never signal a process that does not hold the lock."""
        if not self.on_this_machine():
            raise RunError(f"the run belongs to a process on {self.host}; stop it there")
        if not self.stoppable:
            raise RunError("the run belongs to a thread of a program; only that program can stop it")
        ended = RunError("the process of this run has ended")
        try:
            if not hasattr(os, "pidfd_open"):  # not Linux: a short race between check and signal remains
                if not self.alive():
                    raise ended
                os.kill(self.pid, signal.SIGTERM)
                return
            process = os.pidfd_open(self.pid)  # refers to this process even if its number is reused later
            try:
                if not self.alive() or not _has_open(self.pid, lock):
                    raise ended
                signal.pidfd_send_signal(process, signal.SIGTERM)
            finally:
                os.close(process)
        except (ProcessLookupError, FileNotFoundError):
            raise ended from None
        except PermissionError:
            raise RunError("the run belongs to another user; only that user can stop it") from None

    def to_json(self) -> str:
        return json.dumps({"pid": self.pid, "began": self.start_time, "host": self.host, "listens": self.stoppable})


def _has_open(pid: int, lock: Path) -> bool:
    """Return whether a process has a file open. The content of a lock file alone is not trusted."""
    wanted = lock.stat()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            status = descriptor.stat()
            if (status.st_dev, status.st_ino) == (wanted.st_dev, wanted.st_ino):
                return True
    return False


def write(lock: int) -> None:
    """Record this process in an open lock file."""
    stoppable = threading.current_thread() is threading.main_thread()
    owner = LockOwner(os.getpid(), _start_time(os.getpid()), platform.node(), stoppable)
    with contextlib.suppress(OSError):  # a full disk must not prevent a run
        os.ftruncate(lock, 0)
        os.pwrite(lock, owner.to_json().encode(), 0)


def erase(lock: int) -> None:
    """Remove the owner from an open lock file."""
    with contextlib.suppress(OSError):
        os.ftruncate(lock, 0)


def read(lock: Path) -> LockOwner | None:
    """Return the owner recorded in a lock file, or None if there is none or the file is damaged."""
    try:
        raw = safe_files.read_json(lock)
        owner = LockOwner(raw["pid"], raw["began"], raw["host"], raw["listens"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    valid = type(owner.pid) is int and owner.pid > 0 and isinstance(owner.start_time, str)
    return owner if valid and isinstance(owner.host, str) else None


def _start_time(pid: int) -> str:
    """Return the start time of a process in the unit of the system; empty if the process has ended."""
    try:
        # the fields follow the program name in brackets, which may contain anything; state is the first of them,
        # start time the twentieth
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] in {"Z", "X"} else fields[19]
    except FileNotFoundError:
        if Path("/proc/self").exists():
            return ""
    except (OSError, IndexError):
        return ""
    try:
        os.kill(pid, 0)  # without /proc, only existence can be tested
    except OSError:
        return ""
    return "?"
