"""Pool workers that are new Python processes. They start more slowly than forks, and need no `fork`.

`fork` is missing on Windows. It is unsafe on macOS, whose linear algebra library may have threads that a fork loses.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from multiprocessing.connection import Connection

from polyfed.engines.fork_server import WORKER, end_with
from polyfed.machine import fast_imports, with_large_pages


class SpawnedWorkers:
    """Starts workers as new processes. It has the interface of `ForkServer`."""

    alive = True

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []

    def fork(self) -> tuple[int, Connection]:
        """Start a worker. Return its process id and the connection to it."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "polyfed.engines.spawned_workers", str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                env=with_large_pages({**os.environ, WORKER: "1"}),
            )
        self._processes = [*(other for other in self._processes if other.poll() is None), process]
        return process.pid, Connection(ours.detach())

    def close(self) -> None:
        """Kill the workers. They have no data that could be lost."""
        for process in self._processes:
            process.kill()
            process.wait()


def main(descriptor: int, parent: int) -> None:
    """Run one worker until the caller closes the connection."""
    end_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with fast_imports(permanent=True):
        from polyfed.engines import worker
    worker.serve(Connection(descriptor))
    os._exit(0)  # at once: unloading torch would take seconds


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
