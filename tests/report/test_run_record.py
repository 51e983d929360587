"""Reading run folders: every state, rounds that a resumed run repeated, and damaged folders."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.report.conftest import MakeRun, left_event, round_event

from polyfed.errors import InputError
from polyfed.report.run_record import read, read_all
from polyfed.runs.folder import RunFolder


def test_finished_run(make_run: MakeRun) -> None:
    record = read(make_run())
    assert (record.name, record.method, record.seed, record.state) == ("run", "fedproto", 0, "finished")
    assert record.rounds == [1, 2, 3] and record.planned_rounds == 3
    assert record.accuracy["personal"] == [0.25, 0.75, 0.5]
    assert (record.final_accuracy("personal"), record.best_accuracy("personal")) == (0.5, 0.75)
    assert record.final_accuracy("nothing") is None
    assert record.accuracy_by_client["personal"] == [0.25, 0.5]  # of the last round
    assert record.upload_bytes == [1000] * 3 and record.download_bytes == [3000] * 3
    assert record.seconds["train"] == [1.0] * 3
    (upload,) = record.uploads
    assert (upload.step, upload.name, upload.messages, upload.bytes) == ("train", "prototypes", 6, 3000)
    assert upload.bytes_by_client == {"0": 750, "1": 2250}
    assert upload.shape == "62 rows of 64 to 187 rows of 64"
    assert [client.model for client in record.clients] == ["small", "large"]


def test_states(make_run: MakeRun) -> None:
    stopped = read(make_run("s", finished=False, more=[{"event": "stopped", "round": 3}]))
    assert (stopped.state, stopped.reason) == ("stopped", "after round 3")
    failed = read(make_run("f", finished=False, more=[{"event": "failed", "message": "no\nclient"}]))
    assert (failed.state, failed.reason) == ("failed", "no client")
    resumed = read(
        make_run("r", finished=False, more=[{"event": "failed", "message": "x"}, {"event": "resumed", "round": 3}])
    )
    assert (resumed.state, resumed.reason) == ("died", "")
    folder = RunFolder(make_run("going", finished=False))
    assert read(folder.path).state == "died"
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, pathlib\nfrom polyfed.runs.folder import RunFolder\n"
            "f = RunFolder(pathlib.Path(sys.argv[1]))\nf.lock()\nprint('locked', flush=True)\nsys.stdin.read()",
            str(folder.path),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "locked\n"
        assert read(folder.path).state == "running"
    finally:
        holder.communicate("")
    assert read(folder.path).state == "died"
    folder.lock()  # reading it left no lock behind
    folder.unlock()


def test_rounds_repeated_by_a_resumed_run_count_once(make_run: MakeRun) -> None:
    more = [
        {"event": "method", "kind": "inco", "round": 3, "layers": ["a"], "theta": [0.1], "beta": [0.2]},
        {"event": "failure", "round": 3, "client": "0", "kind": "raised", "message": "x"},
        {"event": "resumed", "round": 2},
        left_event(3, "0", 40),
        {"event": "method", "kind": "inco", "round": 3, "layers": ["a"], "theta": [0.5], "beta": [0.6]},
        round_event(3, 1.0, 0.5, 40),
    ]
    record = read(make_run(finished=False, more=more))
    assert record.rounds == [1, 2, 3]
    assert record.accuracy["personal"] == [0.25, 0.75, 1.0]
    assert record.uploads[0].bytes == 2 * 1000 + 40 and record.uploads[0].messages == 5
    assert [event["theta"] for event in record.method_events["inco"]] == [[0.5]]
    assert record.failures == []
    more.append({"event": "started", "rounds": 10})
    fresh = read(make_run("fresh", finished=False, more=more))
    assert (fresh.rounds, fresh.uploads, fresh.method_events) == ([], [], {})


def test_last_line_cut_off_by_a_kill(make_run: MakeRun) -> None:
    folder = make_run(finished=False)
    with (folder / "events.jsonl").open("a") as file:
        file.write('{"event": "round", "round": 4, "accur')
    assert read(folder).rounds == [1, 2, 3]


def test_rounds_without_evaluation(make_run: MakeRun) -> None:
    unevaluated = {**round_event(4, 0.5, None, 10), "accuracy": {}}
    record = read(make_run(finished=False, more=[unevaluated]))
    assert record.accuracy["personal"] == [0.25, 0.75, 0.5, None]
    assert record.final_accuracy("personal") == 0.5 and record.accuracy_by_client["personal"] == [0.25, 0.5]


def test_run_without_events(make_run: MakeRun) -> None:
    folder = make_run()
    (folder / "events.jsonl").unlink()
    (folder / "clients.json").unlink()
    record = read(folder)
    assert record.accuracy["global"] == [0.125, 0.375, 0.25] and record.upload_bytes == [1000] * 3
    assert record.clients == [] and record.model_of(0) == ""


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.yaml", "["),
        ("config.yaml", "- 1"),
        ("result.json", '{"x": '),
        ("events.jsonl", '{"event": "round", "round": "many"}'),
        ("events.jsonl", '{"event": "round", "round": 1}'),
        ("events.jsonl", json.dumps({**round_event(1, 0.5, 1.0, 1), "loss": "<b>"})),
        ("events.jsonl", '{"event": "left", "round": 1, "client": "0", "step": "t", "fields": [1]}'),
        ("clients.json", "[]"),
        ("clients.json", "{"),
    ],
)
def test_broken_folders_are_reported_and_others_are_read(
    make_run: MakeRun, tmp_path: Path, file: str, content: str
) -> None:
    make_run("valid")
    folder = make_run("broken")
    (folder / file).write_text(content)
    records, broken = read_all([tmp_path])
    assert [record.name for record in records] == ["valid"]
    assert list(broken) == [folder] and str(folder) in broken[folder]


def test_folders_without_runs(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no run in"):
        read_all([tmp_path])
    with pytest.raises(InputError, match="there is no folder"):
        read_all([tmp_path / "nowhere"])


def test_folder_given_twice_is_read_once(make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run()
    assert len(read_all([tmp_path, folder, folder])[0]) == 1


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["zero"], "client 0 has samples of class 1, but class_names has 1 names"),
        ("zero", "class_names is a str, expected a list"),
        ({"0": "zero"}, "class_names is a dict, expected a list"),
    ],
)
def test_class_names_that_do_not_fit_the_counts_are_damage(make_run: MakeRun, names: object, message: str) -> None:
    file = RunFolder(make_run()).clients_file
    content = json.loads(file.read_text())
    content["clients"][0]["train"] = {"0": 3, "1": 2}
    file.write_text(json.dumps({**content, "class_names": names}))
    with pytest.raises(InputError, match=message):
        read(file.parent)
