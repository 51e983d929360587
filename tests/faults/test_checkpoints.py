"""Truncated and damaged checkpoints, and a full disk."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from polyfed import api
from polyfed.runs.folder import RunFolder
from polyfed.runs.records import RoundRecord


class StopAfter:
    """An observer that kills the process after a round."""

    def __init__(self, round: int) -> None:
        self.round = round

    def started(self, config: Any, folder: Path, done: int) -> None: ...

    def round_done(self, record: RoundRecord) -> None:
        if record.round == self.round:
            raise ZeroDivisionError

    def note(self, sentence: str) -> None: ...


def setting(out: Path) -> dict[str, Any]:
    return {
        "config": "quickstart",
        "rounds": 4,
        "clients": 6,
        "participation": 0.5,
        "data": {"dataset": "digits", "limit": 600, "partition": {"scheme": "dirichlet", "alpha": 0.5}},
        "checkpoint": {"seconds": 0},
        "engine": {"name": "serial"},
        "out": out,
    }


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, Any]]:
    """A whole run, one that ended in round 4 with checkpoints of rounds 2 and 3, and the result of both.

    Those who change anything work on a copy.
    """
    folder = tmp_path_factory.mktemp("checkpoints")
    whole = api.run(**setting(folder / "whole"))
    with pytest.raises(ZeroDivisionError):
        api.run(**setting(folder / "run"), observers=[StopAfter(4)])
    names = sorted(path.name for path in (folder / "run" / "checkpoint").glob("*.polyfed"))
    assert names == ["round-000002.polyfed", "round-000003.polyfed"]
    return folder / "whole", folder / "run", whole


@pytest.fixture
def broken_off(original: tuple[Path, Path, dict[str, Any]], tmp_path: Path) -> tuple[Path, str]:
    """Return a copy of the run that ended in round 4, and the expected hash."""
    _, run, whole = original
    return Path(shutil.copytree(run, tmp_path / "run")), whole["state_hash"]


def resumed_from(folder: Path) -> list[int]:
    return [event["round"] for event in RunFolder(folder).events() if event["event"] == "resumed"]


def notes(folder: Path) -> str:
    return " ".join(event["message"] for event in RunFolder(folder).events() if event["event"] == "note")


def test_resume_from_the_newest_checkpoint(broken_off: tuple[Path, str]) -> None:
    folder, expected = broken_off
    assert api.resume(folder)["state_hash"] == expected
    assert resumed_from(folder) == [3]


@pytest.mark.parametrize("damage", ["cut", "flip", "empty"])
def test_a_damaged_checkpoint_is_skipped(broken_off: tuple[Path, str], damage: str) -> None:
    folder, expected = broken_off
    newest = folder / "checkpoint" / "round-000003.polyfed"
    data = bytearray(newest.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 1
    newest.write_bytes(bytes({"cut": data[: len(data) // 2], "flip": data, "empty": b""}[damage]))
    assert api.resume(folder)["state_hash"] == expected
    assert resumed_from(folder) == [2]
    assert "round-000003.polyfed is damaged and was skipped" in notes(folder)


def test_a_damaged_client_state_counts_as_a_damaged_checkpoint(broken_off: tuple[Path, str]) -> None:
    folder, expected = broken_off
    states = folder / "checkpoint" / "clients"
    in_newest = next(path for path in states.iterdir() if path.name.endswith(".3"))  # one call a round
    in_newest.write_bytes(in_newest.read_bytes()[:-1])
    assert api.resume(folder)["state_hash"] == expected
    assert resumed_from(folder) == [2]


def test_without_a_valid_checkpoint_the_run_starts_again(broken_off: tuple[Path, str]) -> None:
    folder, expected = broken_off
    for path in (folder / "checkpoint").glob("*.polyfed"):
        path.write_bytes(path.read_bytes()[:100])
    assert api.resume(folder)["state_hash"] == expected
    assert resumed_from(folder) == []


def test_the_previous_checkpoint_stays_valid_after_a_resume(broken_off: tuple[Path, str]) -> None:
    folder, expected = broken_off
    with pytest.raises(ZeroDivisionError):
        api.resume(folder, observers=[StopAfter(4)])  # resumed from 3, ended again before its next checkpoint
    newest = folder / "checkpoint" / "round-000003.polyfed"
    newest.write_bytes(newest.read_bytes()[:50])
    assert api.resume(folder)["state_hash"] == expected
    assert resumed_from(folder) == [3, 2]


def test_a_finished_run_is_not_run_again(original: tuple[Path, Path, dict[str, Any]]) -> None:
    folder, _, first = original
    lines = len(RunFolder(folder).events())
    assert api.resume(folder) == first
    assert len(RunFolder(folder).events()) == lines


def test_only_the_last_states_are_kept(original: tuple[Path, Path, dict[str, Any]]) -> None:
    states = [path.name.partition(".")[0] for path in (original[0] / "checkpoint" / "clients").iterdir()]
    assert len(states) == len(set(states)) <= 6


def test_a_full_disk_leaves_the_old_checkpoint_intact(
    original: tuple[Path, Path, dict[str, Any]], tmp_path: Path, launcher: Any
) -> None:
    """A limit on file size simulates a full disk: writes fail in the same place with the same kind of error."""
    run = launcher.start(setting(tmp_path / "run"), full_disk=2)
    assert run.wait() == 1
    assert "could not be written" in run.error and "\n" not in run.error
    names = [path.name for path in (tmp_path / "run" / "checkpoint").glob("*.polyfed")]
    assert names == ["round-000001.polyfed"]
    assert not list((tmp_path / "run").rglob("*.new"))
    assert api.resume(tmp_path / "run")["state_hash"] == original[2]["state_hash"]
    assert resumed_from(tmp_path / "run") == [1]
