"""Real processes for the tests of deployments: `polyfed join` and `polyfed serve`, as a user starts them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyfed.deploy.keys import new_authority, new_node_key, read_public_key
from polyfed.deploy.site_registry import Registry

PATIENCE = 400.0  # seconds until a test gives up; nothing is asserted about time


def until(ready: Callable[[], bool], what: str, among: Callable[[], str] = lambda: "") -> None:
    deadline = time.monotonic() + PATIENCE
    while not ready():
        assert time.monotonic() < deadline, f"{what} did not happen; {among()}"
        time.sleep(0.1)


@dataclass
class Process:
    """A command of polyfed that runs."""

    popen: subprocess.Popen[bytes]
    log: Path

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def ask_to_end(self) -> None:
        if self.popen.poll() is None:
            self.popen.terminate()

    def end(self, number: int = signal.SIGTERM) -> int:
        if self.popen.poll() is None:
            self.popen.send_signal(number)
            self.popen.send_signal(signal.SIGCONT)
        return self.popen.wait(60)


def start(log: Path, *arguments: str, program: tuple[str, ...] = ("-m", "polyfed")) -> Process:
    with log.open("ab") as file:
        popen = subprocess.Popen(
            [sys.executable, *program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    return Process(popen, log)


@dataclass(frozen=True)
class Consortium:
    """A folder with a coordinator's home, and the keys of sites that are admitted in it."""

    folder: Path

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def site(
        self, name: str, port: int, *arguments: str, program: tuple[str, ...] = ("-m", "polyfed", "join")
    ) -> Process:
        """A site that joins the coordinator at a port of this machine."""
        return start(
            self.folder / f"{name}.log",
            *("--server", f"127.0.0.1:{port}", "--key", str(self.folder / f"{name}.key")),
            *("--ca", str(self.home / "ca.crt"), "--state", str(self.folder / name), *arguments),
            program=program,
        )


def consortium(folder: Path, *names: str) -> Consortium:
    made = Consortium(folder)
    new_authority(made.home, [])
    registry = Registry(made.home)
    for name in names:
        registry.admit(name, read_public_key(new_node_key(folder, name).public))
    return made


@contextlib.contextmanager
def ending(*processes: Process) -> Iterator[None]:
    try:
        yield
    finally:
        for process in processes:
            process.ask_to_end()
        for process in processes:
            process.end()


def rounds_done(folder: Path) -> int:
    """How many rounds a run folder tells of."""
    return len([event for event in events(folder) if event["event"] == "round"])


def events(folder: Path) -> list[dict[str, Any]]:
    try:
        lines = (folder / "events.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines]
