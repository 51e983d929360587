"""The fork server: a process that has imported torch and polyfed once, and from which pool workers are forked.

It is started before the caller imports torch, so that both import at the same time. A fork takes milliseconds, shares
the memory of imported libraries, and never runs the user's main script again.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from polyfed.errors import InputError, RunError
from polyfed.machine import fast_imports, with_large_pages

if TYPE_CHECKING:
    from polyfed.engines.spawned_workers import SpawnedWorkers

WORKER = "POLYFED_WORKER"  # set in the environment of every process that is a worker


class ForkServer:
    """Handle of a fork server."""

    def __init__(self) -> None:
        if not hasattr(os, "fork"):
            raise InputError("this system has no fork; set engine.start: spawn, or engine.name: serial")
        self._control, theirs = socket.socketpair()
        with theirs:
            # in its own session: Ctrl-C in a terminal reaches the run only, which stops its workers itself
            self._process = subprocess.Popen(
                [sys.executable, "-m", "polyfed.engines.fork_server", str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                env=with_large_pages({**os.environ, WORKER: "1"}),
            )

    def fork(self) -> tuple[int, Connection]:
        """Fork a worker. Return its process id and the connection to it."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(self._control, [b"fork"], [theirs.fileno()])
            pid = self._control.recv(8)
        except OSError as error:
            raise RunError(f"the process that starts the pool's workers is gone ({error})") from None
        if len(pid) < 8:
            raise RunError(f"the pool could not start a worker (exit code {self._process.wait(10)})")
        return int.from_bytes(pid, "little"), Connection(ours.detach())

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def killed(self) -> bool:
        """Whether a signal has ended the process, such as SIGKILL from the system when memory runs out."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(1) < 0
        return False

    def close(self) -> None:
        """Kill the process. It has no data that could be lost."""
        self._control.close()
        self._process.kill()
        self._process.wait()


def fork_from(server: ForkServer) -> tuple[ForkServer, int, Connection]:
    """Fork a worker from a server, or from a new one if it has ended. Return the server that was used as well."""
    try:
        if server.alive:
            return server, *server.fork()
    except RunError:
        if not server.killed:  # otherwise it was killed just now
            raise
    server.close()
    server = ForkServer()
    return server, *server.fork()


_spare: list[ForkServer] = []


def start_spare() -> None:
    """Start a fork server in advance, for the next pool of this process."""
    if not _spare:
        _spare.append(ForkServer())


def acquire() -> ForkServer:
    """Return a fork server: the spare one if it is alive, or else a new one."""
    while _spare:
        spare = _spare.pop()
        if spare.alive:
            return spare
        spare.close()
    return ForkServer()


def release(server: ForkServer | SpawnedWorkers) -> None:
    """Keep a fork server as a spare for the next pool of this process. End workers that were not forked."""
    if isinstance(server, ForkServer) and server.alive and not _spare:
        _spare.append(server)
    else:
        server.close()


def close_spare() -> None:
    """Close the spare fork server, if there is one."""
    while _spare:
        _spare.pop().close()


atexit.register(close_spare)


def end_with(parent: int) -> None:
    """Ask Linux to kill this process when its parent dies: a worker with its fork server, which dies with the run.

    The kernel watches the thread that started this process. A fork server whose thread has ended is gone too;
    `acquire` then starts another one.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # the parent died before the request
        os._exit(1)


def main(descriptor: int, parent: int) -> None:
    """Run the fork server: import everything, then fork on request until the caller closes the connection."""
    end_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with fast_imports(permanent=True):
        from polyfed.engines import worker  # imports torch and everything else that a worker needs

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system reaps workers
    control, server = socket.socket(fileno=descriptor), os.getpid()
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 16, 1)
        if not message or not descriptors:
            os._exit(0)  # at once: unloading torch would take seconds, and the workers end with this process
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            end_with(server)
            control.close()
            worker.serve(Connection(descriptors[0]))
            os._exit(0)
        os.close(descriptors[0])
        control.sendall(pid.to_bytes(8, "little"))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
