"""Processes for the tests of deployments: `polyfed join` and `polyfed serve`, as a user starts them."""

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

from polyfed.deploy.certificates import create_authority
from polyfed.deploy.keys import create_site_key, read_public_key
from polyfed.deploy.site_registry import SiteRegistry

TIMEOUT = 400.0  # seconds until a test gives up; no test asserts a duration


def wait_until(ready: Callable[[], bool], event: str, output: Callable[[], str] = lambda: "") -> None:
    deadline = time.monotonic() + TIMEOUT
    while not ready():
        assert time.monotonic() < deadline, f"{event} did not happen; {output()}"
        time.sleep(0.1)


@dataclass
class Process:
    """A running command of polyfed."""

    popen: subprocess.Popen[bytes]
    log: Path

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def terminate(self) -> None:
        if self.popen.poll() is None:
            self.popen.terminate()

    def stop(self, number: int = signal.SIGTERM) -> int:
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
    """A folder with a coordinator's home and the keys of its admitted sites."""

    folder: Path

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def site(
        self, name: str, port: int, *arguments: str, program: tuple[str, ...] = ("-m", "polyfed", "join")
    ) -> Process:
        """Start a site that joins the coordinator at a port of this machine."""
        return start(
            self.folder / f"{name}.log",
            *("--server", f"127.0.0.1:{port}", "--key", str(self.folder / f"{name}.key")),
            *("--ca", str(self.home / "ca.crt"), "--state", str(self.folder / name), *arguments),
            program=program,
        )


def make_consortium(folder: Path, *names: str) -> Consortium:
    consortium = Consortium(folder)
    create_authority(consortium.home, [])
    registry = SiteRegistry(consortium.home)
    for name in names:
        registry.admit(name, read_public_key(create_site_key(folder, name).public))
    return consortium


@contextlib.contextmanager
def stopping(*processes: Process) -> Iterator[None]:
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.stop()


def rounds_done(folder: Path) -> int:
    """Return the number of rounds in the events of a run folder."""
    return len([event for event in events(folder) if event["event"] == "round"])


def saved_round(folder: Path) -> int:
    """Return the round of the last checkpoint of a run folder. A resumed run repeats later rounds."""
    return max(
        (int(path.stem.partition("-")[2]) for path in (folder / "checkpoint").glob("round-*.polyfed")), default=0
    )


def events(folder: Path) -> list[dict[str, Any]]:
    try:
        lines = (folder / "events.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines]
