"""Run folders that are damaged or made by somebody else: each gets a sentence, and the other runs are still shown.

These are samples; `scripts/damaged_folders.py` runs every command on all cases.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
from pathlib import Path

import pytest
import yaml
from tests.runs.damage import ALIAS_BOMB, Case, cases
from tests.runs.damaged_commands import COMMANDS, SECRET, attempt, forked, sound_runs, warm_up

from polyfed.cli.app import main
from polyfed.errors import InputError
from polyfed.report.run_record import read_all
from polyfed.runs import lock_owner
from polyfed.runs.config_text import MAX_DEPTH, read_yaml
from polyfed.runs.folder import RunFolder
from polyfed.runs.safe_files import read_text

SHOWN = [
    "config.yaml: alias bomb",
    "config.yaml: 100,000 brackets",
    "config.yaml: a bad byte",
    "config.yaml: a link to a file outside",
    "config.yaml: a pipe",
    "config.yaml: rounds huge",
    "result.json: 100,000 brackets",
    "result.json: a folder",
    "result.json: metrics null",
    "result.json: seconds huge",
    "clients.json: 1,000 brackets",
    "events.jsonl: a folder",
    "events.jsonl: a link to a file outside",
    "round event: round huge",
    "round event: up huge",
    "round event: deep",
]
INSPECTED = [SHOWN[0], SHOWN[1], SHOWN[3], SHOWN[4], SHOWN[10], SHOWN[11], "round event: round huge"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a folder with two sound runs and a file outside of them."""
    folder = tmp_path_factory.mktemp("damaged")
    finished, _ = sound_runs(folder / "sound", folder / "outside.txt")
    warm_up("inspect", finished, folder / "work")
    return folder


@pytest.fixture(scope="module")
def by_name(place: Path) -> dict[str, Case]:
    return {case.name: case for case in cases(place / "sound" / "finished", place / "outside.txt")}


@pytest.fixture(scope="module")
def many(place: Path, by_name: dict[str, Case]) -> Path:
    """Create a folder with one sound run and many damaged ones."""
    root = place / "many"
    shutil.copytree(place / "sound" / "finished", root / "sound")
    for number, name in enumerate(SHOWN):
        by_name[name].make(root / "sound", root / f"damaged-{number:02d}")
    return root


def test_there_are_hundreds_of_cases(by_name: dict[str, Case]) -> None:
    assert len(by_name) > 900 and set(SHOWN) <= set(by_name)


def test_reports_leave_out_damaged_runs(many: Path) -> None:
    records, broken = read_all([many])
    assert "sound" in {record.path.name for record in records}
    assert len(records) + len(broken) == len(SHOWN) + 1 and len(broken) >= 10
    assert all(reason.isprintable() and SECRET not in reason for reason in broken.values())


@pytest.mark.parametrize("command", ["compare", "ui"])
def test_other_runs_are_still_shown(many: Path, command: str) -> None:
    status, output = forked(lambda: COMMANDS[command](many, many))
    assert status == 0, output[-2000:]
    assert "unexpected" not in output and SECRET not in output
    if command == "ui":
        listed = json.loads(output)[0]["runs"]
        assert {run["id"] for run in listed} == {"sound", *(f"damaged-{n:02d}" for n in range(len(SHOWN)))}
        reasons = {SHOWN[int(run["id"][-2:])]: run["reason"] for run in listed if run["state"] == "broken"}
        assert {"result.json: 100,000 brackets", "result.json: a folder", "result.json: seconds huge"} <= set(reasons)
        assert all(reason.isprintable() and 10 < len(reason) <= 300 for reason in reasons.values())


@pytest.mark.parametrize("name", INSPECTED)
def test_inspect_prints_one_sentence(place: Path, by_name: dict[str, Case], name: str) -> None:
    assert attempt("inspect", by_name[name], place / "sound" / "finished", place / "work") == ""


def test_unfinished_runs_with_a_damaged_config_are_listed(place: Path) -> None:
    root = place / "unfinished"
    (root / "a").mkdir(parents=True)
    (root / "a" / "config.yaml").write_text(ALIAS_BOMB)
    shutil.copytree(place / "sound" / "unfinished", root / "b")
    (root / "b" / "config.yaml").unlink()
    (root / "b" / "config.yaml").symlink_to(place / "outside.txt")
    status, output = forked(lambda: COMMANDS["ui"](root, root))
    assert status == 256 and SECRET not in output  # there is no sound run
    reasons = {run["id"]: run["reason"] for run in json.loads(output)[0]["runs"]}
    assert reasons["b"] == "config.yaml cannot be read: it is a symbolic link"
    assert reasons["a"].startswith("config.yaml cannot be read: aliases expand to more than 1,000,000 values at line")


def test_runs_with_damaged_events_can_be_resumed(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = place / "resumed"
    shutil.copytree(place / "sound" / "unfinished", folder)
    events = folder / "events.jsonl"
    text = events.read_bytes()
    events.write_bytes(b"\xff\xfe[[[\n" + text + b'{"time": 1, "event": "no')  # a kill cut off the last line
    assert main(["resume", str(folder), "--quiet"]) == 0
    kinds = [event["event"] for event in RunFolder(folder).events()]
    assert "resumed" in kinds and kinds[-1] == "finished"  # the cut line did not swallow the first new event


def test_links_are_never_written_to(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("mine")
    folder = RunFolder(tmp_path / "run")
    folder.create({"name": "run"})
    folder.lock_file.symlink_to(outside)
    folder.events_file.symlink_to(outside)
    with pytest.raises(InputError, match=r"cannot be written: \.lock: it is a symbolic link"):
        folder.lock()
    folder.event("note", message="x")
    assert outside.read_text() == "mine" and lock_owner.read(folder.lock_file) is None
    with pytest.raises(InputError, match="it is a symbolic link"):
        folder.events()


def test_only_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "bytes").write_bytes(b"abc\xff")
    for name, words in (("pipe", "it is not a file"), ("folder", "it is not a file"), ("none", "No such file")):
        with pytest.raises(OSError, match=words):
            read_text(tmp_path / name)
    with pytest.raises(ValueError, match="byte 3 is not UTF-8"):
        read_text(tmp_path / "bytes")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (ALIAS_BOMB, "aliases expand to more than 1,000,000 values"),
        ("a: &x [*x]", "an alias refers to a value that contains it"),
        ("[" * 100_000, f"nested more than {MAX_DEPTH} deep"),
        ("- " * 5000, f"nested more than {MAX_DEPTH} deep"),
        ("a: " + "9" * 5000, "5000 digits"),
        ("a: 2001-99-99", "month"),
        ("a: " + "9" * 30, "more than 64 bits"),
        ("a: \ud800", "surrogates"),
    ],
)
def test_limits_of_yaml(text: str, words: str) -> None:
    with pytest.raises(yaml.YAMLError) as caught:
        read_yaml(text)
    assert words in str(caught.value)


def test_yaml_within_the_limits() -> None:
    deep = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert str(read_yaml(deep)) == deep
    assert read_yaml("a: &a [1]\nb: [*a, *a, [*a]]") == {"a": [1], "b": [[1], [1], [[1]]]}
    assert read_yaml("a: '*b'") == {"a": "*b"}


def test_commands_name_the_file(place: Path, many: Path) -> None:
    printed = io.StringIO()
    with contextlib.redirect_stderr(printed):
        assert main(["inspect", str(many / "damaged-00")]) == 2
    message = printed.getvalue()
    assert message.startswith("polyfed: ") and "damaged-00/config.yaml cannot be read" in " ".join(message.split())
