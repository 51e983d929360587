"""Find and kill processes, and measure their memory and open files."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

FORK_SERVER = b"polyfed.engines.fork_server"
SUPERLINK, SUPERNODE = b"flower_superlink", b"flower_supernode"


def children(pid: int, command: bytes = b"") -> list[int]:
    """Return the children of a process whose command line contains a text."""
    found = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                with contextlib.suppress(OSError):
                    if command in Path(f"/proc/{child}/cmdline").read_bytes():
                        found.append(int(child))
    return found


def workers_of(pid: int) -> list[int]:
    """Return the workers that were forked from the fork servers of a process."""
    return [worker for server in children(pid, FORK_SERVER) for worker in children(server)]


def kill(*pids: int) -> None:
    """Kill processes with SIGKILL. Processes that have ended are ignored."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def memory(pid: int) -> int:
    """Return the resident memory of a process in MB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1_000_000


def computing_seconds(pid: int) -> float:
    """Return the processor time that a process has used."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


def open_files(pid: int) -> int:
    """Return the number of open file descriptors of a process."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
