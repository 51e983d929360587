"""Processes for tests that start in milliseconds: they are forked from one that has imported torch and polyfed.

All processes of a test run share that one: its imports take seconds of computing time.

`run` and `Process` take a command as `subprocess` does: `-m module`, `-c code` or a script, without the interpreter.
Each is a process of its own, with its own `__main__`, folder, environment and streams. Only the imports are shared.
Tests of what happens at the start of an interpreter use `subprocess`, and so does one test of each command.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

TEMPLATE = Path(__file__).with_name("warm_template.py")
PIPE, DEVNULL = subprocess.PIPE, subprocess.DEVNULL


_started: list[subprocess.Popen[bytes]] = []  # it ends with the test run, after this process


@cache
def _address() -> str:
    """Return the address of the process that others are forked from. Start it if no process of this test run has."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")  # the same in all processes of pytest-xdist
    main = os.getppid() if run else os.getpid()
    address = str(Path(tempfile.gettempdir(), f"polyfed-tests-{run or main}"))
    with Path(f"{address}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not Path(address).exists():
            with socket.socket(socket.AF_UNIX) as listening:
                listening.bind(address)
                listening.listen(64)
                descriptors = [listening.fileno(), os.pidfd_open(main)]
                command = [sys.executable, str(TEMPLATE), address, *map(str, descriptors)]
                _started.append(subprocess.Popen(command, pass_fds=descriptors, start_new_session=True))
                os.close(descriptors[1])
    return address


def _send(data: bytes, descriptors: list[int]) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(_address())
        socket.send_fds(connection, [data], descriptors)


class Process:
    """A started process, with the part of the interface of `subprocess.Popen` that tests use."""

    def __init__(
        self,
        *command: str,
        cwd: Path | str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: IO[Any] | int = DEVNULL,
        stdout: IO[Any] | int = DEVNULL,
        stderr: IO[Any] | int = DEVNULL,
        new_session: bool = False,
    ) -> None:
        self.returncode: int | None = None
        self.stdout: IO[str] | None = None
        self.stderr: IO[str] | None = None
        self._status, theirs = socket.socketpair()
        request = {
            "command": command,
            "cwd": str(cwd or Path.cwd()),
            "env": dict(os.environ if env is None else env),
            "new_session": new_session,
        }
        opened: list[int] = []
        streams = [self._stream(stdin, opened), self._stream(stdout, opened, "stdout")]
        streams.append(streams[1] if stderr == subprocess.STDOUT else self._stream(stderr, opened, "stderr"))
        with theirs, tempfile.TemporaryFile() as text:  # a message to a socket may be too short for an environment
            text.write(json.dumps(request).encode())
            text.flush()
            _send(b"start", [theirs.fileno(), text.fileno(), *streams])
        for descriptor in opened:
            os.close(descriptor)
        self.pid = self._receive()

    def _stream(self, given: IO[Any] | int, opened: list[int], name: str = "") -> int:
        if given == DEVNULL:
            opened.append(os.open(os.devnull, os.O_RDWR))
            return opened[-1]
        if given == PIPE:
            read, write = os.pipe()
            setattr(self, name, os.fdopen(read))
            opened.append(write)
            return write
        return given if isinstance(given, int) else given.fileno()

    def _receive(self) -> int:
        """Return the next number that the process's supervisor sends: its id, then its exit code."""
        number = self._status.recv(8, socket.MSG_WAITALL)
        if len(number) < 8:
            raise RuntimeError("the process that others are forked from has ended; its output says why")
        return int.from_bytes(number, "little", signed=True)

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        return self.wait() if self.returncode is not None or select.select([self._status], [], [], 0)[0] else None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end. Return the exit code, or minus the number of the signal that ended the process."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a forked process", timeout or 0)
            self.returncode = self._receive()
            self._status.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        self.wait()


def run(
    *command: str,
    cwd: Path | str | None = None,
    env: Mapping[str, str] | None = None,
    input: str | None = None,
    check: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end. Return its exit code and its output."""
    with tempfile.TemporaryFile("w+") as stdin, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        stdin.write(input or "")
        stdin.seek(0)
        code = Process(*command, cwd=cwd, env=env, stdin=stdin, stdout=out, stderr=err).wait()
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read().decode())
    done = subprocess.CompletedProcess(command, code, *texts)
    if check:
        done.check_returncode()
    return done
