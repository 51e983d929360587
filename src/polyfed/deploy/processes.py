"""Processes of Flower that polyfed starts: quiet ones, that end when polyfed does and write to a log of their own."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from polyfed.deploy.flower_protocol import ENVIRONMENT
from polyfed.errors import InputError, RunError


def require_flower() -> None:
    """One sentence where Flower is not installed. Sets the switches for this process, which then uses it."""
    if importlib.util.find_spec("flwr") is None:
        raise InputError("real federations need Flower; install it with: pip install 'polyfed[flower]'")
    os.environ.update(ENVIRONMENT)


def quiet(home: Path) -> dict[str, str]:
    """The environment of every process of Flower that is started; `home` is where it may keep files."""
    return {**os.environ, **ENVIRONMENT, "FLWR_HOME": str(home), "PYTHONUNBUFFERED": "1"}


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def program(module: str, function: str) -> list[str]:
    """A command of Flower, by the interpreter that runs this, whatever the search path of the shell."""
    # -P: modules are never looked for in the folder where polyfed happens to be started
    return [sys.executable, "-P", "-c", f"from {module} import {function}; {function}()"]


class Child:
    """A process that ends with this one."""

    def __init__(self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            # a session of its own: Ctrl-C in a terminal reaches polyfed, which then ends its children in order
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                start_new_session=True,
                preexec_fn=_dying_with(os.getpid()),
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> int | None:
        """Its exit code, once it has ended."""
        return self._process.poll()

    def wait_until(self, ready: Callable[[], bool], seconds: float) -> None:
        """Wait for it to be of use; a process that ends before is an error with the last lines of its log."""
        deadline = time.monotonic() + seconds
        while not ready():
            if self.ended is not None:
                raise RunError(f"{self.name} ended with code {self.ended}: {self.last_words()}")
            if time.monotonic() > deadline:
                raise RunError(f"{self.name} was not ready within {seconds:g} seconds; see {self.log}")
            time.sleep(0.05)

    def last_words(self) -> str:
        """The end of its log, on one line."""
        with contextlib.suppress(OSError):
            lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
            return " ".join(lines[-4:])[-600:]
        return "it left no log"

    def stop(self, patience: float = 5.0) -> None:
        """Ask it to end, then make it."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(patience)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def listens(host: str, port: int) -> bool:
    """Whether somebody accepts connections there."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1):
        return True
    return False


def _dying_with(parent: int) -> Callable[[], None]:
    """For the new process, before its program: on Linux the system ends it when its parent ends, however that was."""
    try:
        prctl = ctypes.CDLL(None, use_errno=True).prctl
    except (OSError, AttributeError):
        return lambda: None

    def tie() -> None:
        prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)

    return tie
