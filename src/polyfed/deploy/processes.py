"""Flower's processes, which polyfed starts: without telemetry, with a log file, and never outliving polyfed."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from polyfed.deploy.flower_protocol import ENVIRONMENT
from polyfed.errors import RunError, require


def require_flower() -> None:
    """Raise `InputError` if Flower is not installed. Disable its telemetry in this process."""
    require("flwr", extra="flower", sentence="federations between sites need")
    os.environ.update(ENVIRONMENT)


def flower_environment(home: Path) -> dict[str, str]:
    """Return the environment of Flower's processes. `home` is the folder for Flower's own files."""
    return {**os.environ, **ENVIRONMENT, "FLWR_HOME": str(home), "PYTHONUNBUFFERED": "1"}


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port that is free at this moment."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def python_command(module: str, function: str) -> list[str]:
    """Return a command line that calls a function with the current interpreter, whatever the shell's search path."""
    # -P: do not import modules from the current folder
    return [sys.executable, "-P", "-c", f"from {module} import {function}; {function}()"]


class ChildProcess:
    """A process that ends when this one does."""

    def __init__(self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            # a session of its own: Ctrl-C in a terminal reaches only polyfed, which then stops its children in order
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                start_new_session=True,
                preexec_fn=_die_with(os.getpid()),
            )

    @property
    def exit_code(self) -> int | None:
        """Exit code, or None while the process runs."""
        return self._process.poll()

    def wait(self, timeout: float) -> int | None:
        """Wait for the end of the process. Return its exit code, or None if it still runs after `timeout` seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout)
        return None

    def wait_until(self, ready: Callable[[], bool], timeout: float) -> None:
        """Wait until `ready` returns true. Raise `RunError` with the end of the log if the process ends first."""
        deadline = time.monotonic() + timeout
        while not ready():
            if self.exit_code is not None:
                raise RunError(f"{self.name} ended with code {self.exit_code}: {self.log_tail()}")
            if time.monotonic() > deadline:
                raise RunError(f"{self.name} was not ready within {timeout:g} seconds; see {self.log}")
            time.sleep(0.05)

    def log_tail(self) -> str:
        """Return the last lines of the log, joined into one."""
        with contextlib.suppress(OSError):
            lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
            return " ".join(lines[-4:])[-600:]
        return "it left no log"

    def stop(self, timeout: float = 5.0) -> None:
        """Terminate the process. Kill it if it has not ended after `timeout` seconds."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def is_listening(host: str, port: int) -> bool:
    """Return whether a process accepts connections at this address."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1):
        return True
    return False


def _die_with(parent: int) -> Callable[[], None]:
    """Return a function for a new process to call: on Linux, the kernel then ends it when its parent ends."""
    try:
        prctl = ctypes.CDLL(None, use_errno=True).prctl
    except (OSError, AttributeError):
        return lambda: None

    def set_death_signal() -> None:
        prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)

    return set_death_signal
