"""Runs in separate processes, and their progress."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass
class Started:
    """A started run: its process and exit status."""

    launcher: subprocess.Popen[str]
    pid: int
    error: str = ""

    def wait(self) -> int:
        """Its exit code, or the number of the signal that ended it, below zero."""
        while "ended" not in (message := listen(self.launcher)):
            self.error = message["error"]
        return int(message["ended"])


def listen(launcher: subprocess.Popen[str]) -> dict[str, Any]:
    assert launcher.stdout is not None
    line = launcher.stdout.readline()
    assert line, "the launcher is gone"
    message: dict[str, Any] = json.loads(line)
    return message


@dataclass
class Launcher:
    """Starts runs in sequence."""

    process: subprocess.Popen[str]

    def start(self, setting: Mapping[str, Any], **happens: int) -> Started:
        """`happens` names what shall happen, after which round."""
        assert self.process.stdin is not None
        wanted = {name.replace("_", " "): round for name, round in happens.items()}
        self.process.stdin.write(json.dumps({"setting": {**setting, "out": str(setting["out"])}, "happens": wanted}))
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return Started(self.process, int(listen(self.process)["pid"]))


@pytest.fixture(scope="session")
def launcher() -> Iterator[Launcher]:
    script = Path(__file__).with_name("launcher.py")
    with subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Launcher(process)
        assert process.stdin is not None
        process.stdin.close()


@dataclass(frozen=True)
class Events:
    """Return what a run has written so far."""

    folder: Path

    def of(self, kind: str) -> list[dict[str, Any]]:
        path = self.folder / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [event for event in map(_parsed, lines) if event.get("event") == kind]

    def beginnings(self) -> int:
        return len(self.of("started")) + len(self.of("resumed"))

    def round(self) -> int:
        """The last round that was finished."""
        return max((int(event["round"]) for event in self.of("round")), default=0)

    def wait(self, beginnings: int, round: int) -> None:
        """Until the run has begun so many times, and has finished this round."""
        deadline = time.monotonic() + 400
        while self.beginnings() < beginnings or self.round() < round:
            assert time.monotonic() < deadline, "the run did not get that far"
            time.sleep(0.005)


def _parsed(line: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(line)
    except json.JSONDecodeError:
        return {}  # a line that is being written
    return found


@pytest.fixture
def events_of() -> type[Events]:
    return Events
