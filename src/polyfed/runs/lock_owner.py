"""Which process works on a run folder: written into its lock, so that others can see it and ask it to stop."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

from polyfed.errors import RunError


@dataclass(frozen=True)
class Holder:
    """A process, told apart from a later one with the same number by when it began."""

    pid: int
    began: str
    host: str
    listens: bool  # it answers SIGTERM with a checkpoint; a run in a thread does not

    def here(self) -> bool:
        """On this machine, where processes can be looked at."""
        return self.host == platform.node()

    def alive(self) -> bool:
        """Still the same process. Only to be asked on its own machine."""
        return bool(self.began) and _began(self.pid) == self.began

    def stop(self, lock: Path) -> None:
        """Ask it to end after its round, with a checkpoint. Never reaches a process that does not hold the lock."""
        if not self.here():
            raise RunError(f"the run belongs to a process on {self.host}; stop it there")
        if not self.listens:
            raise RunError("the run belongs to a thread of a program, which alone can stop it")
        gone = RunError("the process of this run has ended")
        try:
            if not hasattr(os, "pidfd_open"):  # not on Linux: between looking and sending there is a moment
                if not self.alive():
                    raise gone
                os.kill(self.pid, signal.SIGTERM)
                return
            process = os.pidfd_open(self.pid)  # from here on the number cannot pass to another process unnoticed
            try:
                if not self.alive() or not _holds(self.pid, lock):
                    raise gone
                signal.pidfd_send_signal(process, signal.SIGTERM)
            finally:
                os.close(process)
        except (ProcessLookupError, FileNotFoundError):
            raise gone from None
        except PermissionError:
            raise RunError("the run belongs to another user, who alone can stop it") from None


def _holds(pid: int, lock: Path) -> bool:
    """Whether a process has the file open: what is written in it may have been written by anybody."""
    wanted = lock.stat()
    for opened in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found = opened.stat()
            if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
                return True
    return False


def sign(lock: int) -> None:
    """Write this process into an open lock file."""
    listens = threading.current_thread() is threading.main_thread()
    holder = Holder(os.getpid(), _began(os.getpid()), platform.node(), listens)
    with contextlib.suppress(OSError):  # a full disk must not prevent a run for this
        os.ftruncate(lock, 0)
        os.pwrite(lock, json.dumps(asdict(holder)).encode(), 0)


def erase(lock: int) -> None:
    """Nobody works on the folder any more."""
    with contextlib.suppress(OSError):
        os.ftruncate(lock, 0)


def read(lock: Path) -> Holder | None:
    """Who signed a lock file last; None where nobody did, or did not end as it should be."""
    try:
        raw = json.loads(lock.read_bytes())
        holder = Holder(raw["pid"], raw["began"], raw["host"], raw["listens"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    sound = type(holder.pid) is int and holder.pid > 0 and isinstance(holder.began, str)
    return holder if sound and isinstance(holder.host, str) else None


def _began(pid: int) -> str:
    """When a process began, in the system's own words; empty for one that has ended."""
    try:
        # after the name in brackets, which may hold anything: the state is the first field, the start the twentieth
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] in {"Z", "X"} else fields[19]
    except FileNotFoundError:
        if Path("/proc/self").exists():
            return ""
    except (OSError, IndexError):
        return ""
    try:
        os.kill(pid, 0)  # a system without /proc says no more than that there is one
    except OSError:
        return ""
    return "?"
