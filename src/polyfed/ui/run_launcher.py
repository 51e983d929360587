"""Start runs from the page: each is an ordinary `polyfed run`, in a process that outlives the page."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from polyfed.errors import InputError, RunError
from polyfed.ui.start_request import StartRequest

MAX_STARTED = 4  # started from the page and still running
CHECK_TIMEOUT = 120.0  # seconds
MAX_KEPT = 100  # ended processes whose messages are kept
MAX_OUTPUT = 20_000  # characters of a check, and of an error message, that are sent to the page
POLYFED = (sys.executable, "-P", "-m", "polyfed")  # -P: no module is imported from the working directory


@dataclass
class _Launch:
    """A process that was started, and the file that receives its error messages."""

    process: subprocess.Popen[bytes]
    errors: IO[bytes]
    message: str | None = None

    def ended(self) -> bool:
        """Return whether the process has ended. Keep its message, and close the file."""
        if self.process.poll() is None:
            return False
        if self.message is None:
            self.errors.seek(0)
            self.message = _message(self.errors.read(), self.process.returncode)
            self.errors.close()
        return True


@dataclass
class RunLauncher:
    """Checks and starts runs below `root`. Thread-safe."""

    root: Path
    limit: int = MAX_STARTED
    _launches: dict[str, _Launch] = field(default_factory=dict)
    _checked: StartRequest | None = None  # the last request that passed its check
    _check_lock: threading.Lock = field(default_factory=threading.Lock)
    _start_lock: threading.RLock = field(default_factory=threading.RLock)

    def presets(self) -> list[dict[str, str]]:
        """Return the name and the description of every preset."""
        from polyfed.config.loading import PRESETS, preset_names

        return [
            {"name": name, "description": _leading_comment((PRESETS / f"{name}.yaml").read_text())}
            for name in preset_names()
        ]

    def check(self, request: StartRequest) -> dict[str, str]:
        """Check a run as `polyfed check` does. Return its name, its command and the output of the check.

        Raise InputError with the message of the check if the run would fail.
        """
        name = request.config(self.root).run_name
        self._check_free(name)
        if not self._check_lock.acquire(blocking=False):
            raise RunError("another check is running; try again in a few seconds")
        try:
            report = _output_of_check(request)
            self._checked = request
        finally:
            self._check_lock.release()
        command = ["polyfed", "run", request.preset, *request.overrides, "--out", str(self.root / name)]
        return {"name": name, "command": _shell_text(command), "report": report}

    def start(self, request: StartRequest) -> dict[str, str]:
        """Start a run and return the id that it will have in the list. Check it first, unless that was just done."""
        self._check_limit()
        if request != self._checked:
            self.check(request)
        self._checked = None
        name = request.config(self.root).run_name
        with self._start_lock:
            self._check_limit()
            self._check_free(name)
            self._launches[name] = self._launch(name, request)
        return {"id": name}

    def state(self, name: str) -> dict[str, Any]:
        """Return whether the process of a started run has ended, and its error message."""
        with self._start_lock:
            launch = self._launches.get(name)
            if launch is None:
                raise InputError(f"no run called '{name}' was started from the page")
            return {"ended": launch.ended(), "error": launch.message or ""}

    def _check_limit(self) -> None:
        with self._start_lock:
            ended = [name for name, launch in self._launches.items() if launch.ended()]
            running = len(self._launches) - len(ended)
            for name in ended[:-MAX_KEPT]:
                del self._launches[name]
        if running >= self.limit:
            raise RunError(
                f"{running} of the runs that were started from the page are running; at most {self.limit} may run "
                "at the same time; stop one, or wait until one has finished"
            )

    def _check_free(self, name: str) -> None:
        with self._start_lock:
            launch = self._launches.get(name)
            starting = launch is not None and not launch.ended()
        if starting or os.path.lexists(self.root / name):
            raise InputError(
                f"there is a run called '{name}' already; choose another name, or change a setting such as seed"
            )

    def _launch(self, name: str, request: StartRequest) -> _Launch:
        errors = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
        process = subprocess.Popen(
            [*POLYFED, "run", "--quiet", f"--out={self.root / name}", *request.arguments()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,  # Ctrl-C in the terminal of the dashboard does not reach it
        )
        return _Launch(process, errors)


def _output_of_check(request: StartRequest) -> str:
    """Run `polyfed check` in a process of its own and return what it prints. Raise InputError if it fails."""
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}
    try:
        done = subprocess.run(
            [*POLYFED, "check", *request.arguments()],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=CHECK_TIMEOUT,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InputError(f"the check took longer than {CHECK_TIMEOUT:.0f} seconds and was ended") from None
    if done.returncode != 0:
        raise InputError(_message(done.stderr, done.returncode))
    lines = done.stdout.decode(errors="replace").splitlines()
    return "\n".join(line.rstrip() for line in lines)[:MAX_OUTPUT]


def _message(errors: bytes, code: int) -> str:
    """Return the error message of a command, or an empty text if it ended normally or was stopped by the user."""
    if code in {0, 130}:
        return ""
    text = errors[-MAX_OUTPUT:].decode(errors="replace").strip()
    return text.removeprefix("polyfed: ") or f"the process ended with exit code {code} and without a message"


def _leading_comment(text: str) -> str:
    """Return the comment at the top of a file as one paragraph."""
    comment = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        comment.append(line.lstrip("# "))
    return " ".join(comment)


def _shell_text(command: list[str]) -> str:
    """Return a command as a user types it in a shell."""
    import shlex

    return shlex.join(command)
