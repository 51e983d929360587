"""How the dashboard reads run folders: states, incremental rounds, and changes since a revision."""

from __future__ import annotations

import json
import os
import platform
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from polyfed.benchmarks.ui import record, result
from polyfed.runs import lock_owner
from polyfed.runs.folder import RunFolder
from polyfed.ui.history import History
from polyfed.ui.run_index import MIN_INTERVAL, RunIndex
from polyfed.ui.run_summary import RunSnapshot, file_stamps, read_snapshot

CONFIG: dict[str, Any] = {
    "name": "n",
    "method": {"name": "fedproto"},
    "data": {"dataset": "digits"},
    "seed": 3,
    "rounds": 9,
    "clients": 2,
}


def run_folder(path: Path, *events: dict[str, Any], config: Any = CONFIG) -> Path:
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    append(path, *events)
    return path


def append(path: Path, *events: dict[str, Any]) -> None:
    with (path / "events.jsonl").open("a") as file:
        file.writelines(json.dumps({"time": 1.0, **event}) + "\n" for event in events)


def done(number: int) -> dict[str, Any]:
    return {**record(number, 9, 2, 0), "event": "round"}


def snapshot(path: Path) -> RunSnapshot:
    return read_snapshot("x", path, file_stamps(str(path)))


def state(path: Path) -> tuple[str, str]:
    summary = snapshot(path).at(time.time())
    return summary.state, summary.reason


STARTED = {"event": "started"}


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([], ("died", "it did not start")),
        ([STARTED, done(1)], ("died", "its process ended without a message")),
        ([STARTED, done(1), {"event": "stopped", "round": 1}], ("stopped", "")),
        ([STARTED, done(1), {"event": "failed", "message": "why"}], ("failed", "why")),
        ([STARTED, {"event": "failed", "message": "why"}, {"event": "resumed", "round": 0}], ("died", None)),
        ([STARTED, done(1), {"event": "note", "message": "x"}, {"event": "left"}], ("died", None)),
    ],
)
def test_states_without_a_process(tmp_path: Path, events: list[dict[str, Any]], expected: tuple[str, Any]) -> None:
    actual = state(run_folder(tmp_path / "run", *events))
    assert actual[0] == expected[0] and expected[1] in {None, actual[1]}


def test_run_is_running_while_its_process_is_alive(tmp_path: Path) -> None:
    folder = RunFolder(run_folder(tmp_path / "run", STARTED, done(1)))
    folder.lock()
    assert state(folder.path) == ("running", "")
    assert snapshot(folder.path).at(0).stoppable
    folder.unlock()
    assert state(folder.path)[0] == "died"


def test_run_of_another_machine_dies_after_a_silence(tmp_path: Path) -> None:
    path = run_folder(tmp_path / "run", STARTED)
    (path / ".lock").write_text(lock_owner.LockOwner(1, "1", platform.node() + "-other", True).to_json())
    assert state(path)[0] == "running"
    assert not snapshot(path).at(time.time()).stoppable
    assert snapshot(path).at(time.time() + lock_owner.SILENCE_LIMIT + 1).state == "died"


def test_last_round_is_read_before_many_uploads(tmp_path: Path) -> None:
    left = [{"event": "left", "client": str(k), "fields": {"x": 1}} for k in range(3000)]
    path = run_folder(tmp_path / "run", STARTED, done(1), done(2), *left)
    with (path / "events.jsonl").open("a") as file:
        file.write('{"time": 1, "event": "rou')  # cut off by a kill
    summary = snapshot(path).summary
    assert (summary.done, summary.rounds, summary.method, summary.data) == (2, 9, "fedproto", "digits")
    assert summary.personal == done(2)["accuracy"]["personal"]["value"]


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("config.yaml", "a: [", "config.yaml cannot be read: it is not YAML at line"),
        ("config.yaml", "- 1", "config.yaml holds a list, expected a mapping"),
        ("config.yaml", "!!python/object/apply:os.system ['true']", "it is not YAML at line"),
        ("result.json", "{", "result.json cannot be read"),
        ("result.json", "[" * 100_000, "recursion"),
        ("result.json", "[]", "result.json holds a list"),
        ("result.json", '{"method": "m", "accuracy": 3}', "holds no result that polyfed wrote"),
        ("result.json", '{"method": "m", "accuracy": {"personal": [1], "global": null}}', "holds no result"),
    ],
)
def test_broken_folders_have_a_reason(tmp_path: Path, file: str, text: str, message: str) -> None:
    path = run_folder(tmp_path / "run")
    (path / file).write_text(text)
    actual, reason = state(path)
    assert actual == "broken" and message in reason


def test_folder_without_config_is_broken(tmp_path: Path) -> None:
    path = run_folder(tmp_path / "run", STARTED)
    (path / "config.yaml").unlink()
    assert state(path) == ("broken", "it has no config.yaml")


def test_numbers_that_json_cannot_hold_are_dropped(tmp_path: Path) -> None:
    path = run_folder(tmp_path / "run", STARTED, {**done(1), "loss": float("nan")})
    spoiled = result(CONFIG, [record(k, 9, 2, 0) for k in range(1, 10)])
    spoiled["accuracy"]["personal"]["final"] = float("inf")
    (path / "result.json").write_text(json.dumps(spoiled))
    runs = RunIndex(tmp_path)
    (one,) = json.loads(json.dumps(runs.changes(0), allow_nan=False))["runs"]
    assert one["state"] == "finished" and one["personal"] is None and one["global"] is not None
    assert runs.rounds("run", 0, 0)["rounds"][0]["loss"] is None


# incremental reading

EVENTS = st.lists(
    st.one_of(
        st.integers(1, 6).map(done),
        st.integers(0, 6).map(lambda k: {"event": "resumed", "round": k}),
        st.just({"event": "note", "message": "x"}),
        st.just({"event": "left", "client": "0"}),
    ),
    max_size=20,
)


@settings(max_examples=25, deadline=None)
@given(events=EVENTS, cuts=st.lists(st.integers(0, 5000), max_size=5))
def test_incremental_reading_equals_reading_at_once(
    tmp_path_factory: pytest.TempPathFactory, events: list[dict[str, Any]], cuts: list[int]
) -> None:
    data = b"".join(json.dumps(event).encode() + b"\n" for event in events)
    folder = tmp_path_factory.mktemp("parts")
    complete, growing = folder / "complete", folder / "growing"
    complete.write_bytes(data)
    at_once, followed = History(complete), History(growing)
    at_once.update()
    known: dict[str, Any] = {"generation": 0, "rounds": []}
    for end in [*sorted(cuts), len(data)]:
        growing.write_bytes(data[:end])
        followed.update()
        news = followed.since(known["generation"], len(known["rounds"]))
        # as the page merges a response
        known = {"generation": news["generation"], "rounds": known["rounds"][: news["from"]] + news["rounds"]}
    assert followed.rounds == at_once.rounds == known["rounds"]
    assert followed.notes == at_once.notes


def test_only_changes_are_sent(tmp_path: Path) -> None:
    first = run_folder(tmp_path / "a", STARTED)
    run_folder(tmp_path / "deep" / "er" / "b", STARTED)
    (tmp_path / "empty").mkdir()
    runs = RunIndex(tmp_path)
    start = runs.changes(0)
    assert start["full"] and [run["id"] for run in start["runs"]] == ["a", "deep/er/b"]
    assert runs.changes(start["revision"])["runs"] == []
    append(first, done(1))
    os.utime(first / "events.jsonl", (1, 1))
    time.sleep(MIN_INTERVAL)
    news = runs.changes(start["revision"])
    assert not news["full"] and [(run["id"], run["done"], run["up"]) for run in news["runs"]] == [("a", 1, 1000)]
    for file in first.iterdir():
        file.unlink()
    time.sleep(MIN_INTERVAL)
    assert runs.changes(news["revision"])["removed"] == ["a"]
    assert runs.changes(start["revision"] - 2)["full"]  # a revision of an earlier server


def test_root_may_be_a_run_folder(tmp_path: Path) -> None:
    run_folder(tmp_path / "run", STARTED, done(1))
    runs = RunIndex(tmp_path / "run")
    assert [run["id"] for run in runs.changes(0)["runs"]] == ["."]
    assert len(runs.rounds(".", 0, 0)["rounds"]) == 1 and runs.config(".")["settings"]["method.name"] == "fedproto"
