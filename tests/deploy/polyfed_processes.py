"""Processes for the tests of deployments: `polyfed join` and `polyfed serve`, as a user starts them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import warm_processes

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

    popen: warm_processes.Process
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
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        popen = warm_processes.Process(*program, *arguments, stdout=file, stderr=subprocess.STDOUT, env=environment)
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
    with stopping_all(dict(enumerate(processes))):
        yield


@contextlib.contextmanager
def stopping_all(processes: Mapping[Any, Process]) -> Iterator[None]:
    """Stop processes at the end. Some may be replaced by others until then."""
    try:
        yield
    finally:
        for process in processes.values():
            process.terminate()
        for process in processes.values():
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
