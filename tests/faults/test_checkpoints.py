"""Checkpoints that are cut, damaged, or meet a full disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from polyfed import api
from polyfed.runs.folder import RunFolder


class StopAfter:
    """An observer that ends a run the hard way once a round is done."""

    def __init__(self, round: int) -> None:
        self.round = round

    def started(self, config: Any, folder: Path, done: int) -> None: ...

    def round_done(self, record: dict[str, Any]) -> None:
        if record["round"] == self.round:
            raise ZeroDivisionError

    def note(self, sentence: str) -> None: ...


def setting(out: Path) -> dict[str, Any]:
    return {
        "source": "quickstart",
        "rounds": 4,
        "clients": 6,
        "participation": 0.5,
        "checkpoint": {"seconds": 0},
        "engine": {"name": "serial"},
        "out": out,
    }


@pytest.fixture
def broken_off(tmp_path: Path) -> tuple[Path, str]:
    """A run that ended in round 4, with checkpoints of rounds 2 and 3; and the hash it must end with."""
    whole = api.run(**setting(tmp_path / "whole"))
    with pytest.raises(ZeroDivisionError):
        api.run(**setting(tmp_path / "run"), observers=[StopAfter(4)])
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoint").glob("*.polyfed"))
    assert names == ["round-000002.polyfed", "round-000003.polyfed"]
    return tmp_path / "run", whole["state_hash"]


def resumed_from(folder: Path) -> list[int]:
    return [event["round"] for event in RunFolder(folder).events() if event["event"] == "resumed"]


def notes(folder: Path) -> str:
    return " ".join(event["message"] for event in RunFolder(folder).events() if event["event"] == "note")


def test_resume_from_the_newest(broken_off: tuple[Path, str]) -> None:
    folder, expected = broken_off
    assert api.resume(folder)["state_hash"] == expected
    assert resumed_from(folder) == [3]


@pytest.mark.parametrize("damage", ["cut", "flip", "empty"])
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(broken_off: tuple[Path, str], damage: str) -> None:
    folder, expected = broken_off
    newest = folder / "checkpoint" / "round-000003.polyfed"
    data = bytearray(newest.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 1
    newest.write_bytes(bytes({"cut": data[: len(data) // 2], "flip": data, "empty": b""}[damage]))
    assert api.resume(folder)["state_hash"] == expected
    assert resumed_from(folder) == [2]
    assert "round-000003.polyfed is damaged and was passed over" in notes(folder)


def test_a_damaged_client_state_counts_as_a_damaged_checkpoint(broken_off: tuple[Path, str]) -> None:
    folder, expected = broken_off
    states = folder / "checkpoint" / "clients"
    in_newest = next(path for path in states.iterdir() if path.name.endswith(".3"))  # one call a round
    in_newest.write_bytes(in_newest.read_bytes()[:-1])
    assert api.resume(folder)["state_hash"] == expected
    assert resumed_from(folder) == [2]


def test_without_any_whole_checkpoint_the_run_starts_again(broken_off: tuple[Path, str]) -> None:
    folder, expected = broken_off
    for path in (folder / "checkpoint").glob("*.polyfed"):
        path.write_bytes(path.read_bytes()[:100])
    assert api.resume(folder)["state_hash"] == expected
    assert resumed_from(folder) == []


def test_the_checkpoint_before_is_whole_after_a_resume_too(broken_off: tuple[Path, str]) -> None:
    folder, expected = broken_off
    with pytest.raises(ZeroDivisionError):
        api.resume(folder, observers=[StopAfter(4)])  # resumed from 3, ended again before its next checkpoint
    newest = folder / "checkpoint" / "round-000003.polyfed"
    newest.write_bytes(newest.read_bytes()[:50])
    assert api.resume(folder)["state_hash"] == expected
    assert resumed_from(folder) == [3, 2]


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    first = api.run(**setting(tmp_path / "run"))
    lines = len(RunFolder(tmp_path / "run").events())
    assert api.resume(tmp_path / "run") == first
    assert len(RunFolder(tmp_path / "run").events()) == lines


def test_only_the_last_states_stay(tmp_path: Path) -> None:
    api.run(**setting(tmp_path / "run"))
    states = [path.name.partition(".")[0] for path in (tmp_path / "run" / "checkpoint" / "clients").iterdir()]
    assert len(states) == len(set(states)) <= 6


FULL_DISK = """
import json, resource, signal, sys
from pathlib import Path
from polyfed import api
from polyfed.errors import PolyfedError

class Fill:
    def started(self, config, folder, done): pass
    def note(self, sentence): pass
    def round_done(self, record):
        if record["round"] == 2:  # from now on no file can grow beyond one byte, as on a disk that is full
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))

try:
    api.run(**json.loads(sys.argv[1]), observers=[Fill()])
except PolyfedError as error:
    print(error.exit_code, error)
"""


def test_a_full_disk_leaves_the_old_checkpoint_whole(tmp_path: Path) -> None:
    """The limit on file size stands for a full disk: writing fails in the same place with the same kind of error."""
    whole = api.run(**setting(tmp_path / "whole"))
    chosen = {**setting(tmp_path / "run"), "out": str(tmp_path / "run")}
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, json.dumps(chosen)], capture_output=True, text=True, env=os.environ
    )
    assert done.stdout.startswith("1 "), done.stdout + done.stderr
    assert "could not be written" in done.stdout and done.stdout.count("\n") == 1
    names = [path.name for path in (tmp_path / "run" / "checkpoint").glob("*.polyfed")]
    assert names == ["round-000001.polyfed"]
    assert not list((tmp_path / "run").rglob("*.new"))
    assert api.resume(tmp_path / "run")["state_hash"] == whole["state_hash"]
    assert resumed_from(tmp_path / "run") == [1]
