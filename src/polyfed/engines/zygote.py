"""A process that has imported everything once, and from which workers are forked.

Starting it needs no torch in the caller, so a command can start it first and import meanwhile. Forking from it takes
milliseconds, shares the memory of imported libraries between workers, and never runs the user's main script again.
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

from polyfed.errors import InputError, RunError

WORKER = "POLYFED_WORKER"  # set in the environment of every process that is a worker


class Zygote:
    """The caller's end: asks for workers."""

    def __init__(self) -> None:
        if not hasattr(os, "fork"):
            raise InputError("engine 'pool' needs a POSIX system; set engine.name: serial")
        self._control, theirs = socket.socketpair()
        with theirs:
            # a session of its own: Ctrl-C in a terminal reaches the run, which then stops its workers itself
            self._process = subprocess.Popen(
                [sys.executable, "-m", "polyfed.engines.zygote", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                env={**os.environ, WORKER: "1"},
            )

    def fork(self) -> tuple[int, Connection]:
        """A new worker: its process id and the connection to it."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(self._control, [b"fork"], [theirs.fileno()])
            pid = self._control.recv(8)
        except OSError as error:
            raise RunError(f"the pool's starting process is gone ({error})") from None
        if len(pid) < 8:
            raise RunError(f"the pool could not start a worker (exit code {self._process.wait(10)})")
        return int.from_bytes(pid, "little"), Connection(ours.detach())

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """It keeps nothing that could be lost, so it is not waited for."""
        self._control.close()
        self._process.kill()
        self._process.wait()


_spare: list[Zygote] = []


def start_early() -> None:
    """Start a zygote now, to be used by the next pool of this process."""
    if not _spare:
        _spare.append(Zygote())


def take() -> Zygote:
    """The spare zygote, if there is one that lives, or a new one."""
    while _spare:
        spare = _spare.pop()
        if spare.alive:
            return spare
        spare.close()
    return Zygote()


def give_back(zygote: Zygote) -> None:
    """Keep a zygote for the next pool of this process: that one then starts at once."""
    if zygote.alive and not _spare:
        _spare.append(zygote)
    else:
        zygote.close()


def drop_early() -> None:
    """End a zygote that nobody took."""
    while _spare:
        _spare.pop().close()


atexit.register(drop_early)


def _die_with_parent() -> None:
    """On Linux: a worker ends when its zygote does, which ends when the run does, however that ended."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def main(descriptor: int) -> None:
    """The zygote's own life: import, then fork on request until the caller hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    from polyfed.engines import worker  # imports torch and all that a worker needs

    worker.warm_up()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system reaps workers
    control = socket.socket(fileno=descriptor)
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 16, 1)
        if not message or not descriptors:
            return
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _die_with_parent()
            control.close()
            worker.serve(Connection(descriptors[0]))
            os._exit(0)
        os.close(descriptors[0])
        control.sendall(pid.to_bytes(8, "little"))


if __name__ == "__main__":
    main(int(sys.argv[1]))
