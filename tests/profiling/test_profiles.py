"""Profiles of runs: the table adds up, the trace is valid, and results do not change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyfed
from polyfed.errors import PayloadError
from polyfed.profiling import PARTS, Recorder, recording, span, spans, timed
from polyfed.profiling.table import format_table
from polyfed.runs.records import Result

MICROSECOND = 1.0  # of a trace: starts and durations are rounded separately


def tiny_run(out: Path, engine: dict[str, Any], *, profile: bool) -> Result:
    x = np.random.default_rng(0).normal(size=(60, 4))
    return polyfed.run(
        data=(x, (x[:, 0] > 0).astype(int)),
        method="fedproto",
        clients=3,
        rounds=2,
        engine=engine,
        out=out,
        profile=profile,
        progress=False,
    )


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Run folders of the same run: without a profile, and profiled in one process and with two workers."""
    root = tmp_path_factory.mktemp("profiles")
    tiny_run(root / "plain", {"name": "serial"}, profile=False)
    tiny_run(root / "serial", {"name": "serial"}, profile=True)
    tiny_run(root / "pool", {"name": "pool", "workers": 2}, profile=True)
    return {name: root / name for name in ("plain", "serial", "pool")}


def trace(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "profile.json").read_text())
    return content


def test_results_are_equal_and_only_a_profiled_run_has_a_trace(folders: dict[str, Path]) -> None:
    hashes = {polyfed.load(folder)["state_hash"] for folder in folders.values()}
    assert len(hashes) == 1
    files = {name: {path.name for path in folder.iterdir()} for name, folder in folders.items()}
    assert files["serial"] - files["plain"] == {"profile.json"}


@pytest.mark.parametrize("name", ["serial", "pool"])
def test_the_parts_add_up_to_the_wall_time(folders: dict[str, Path], name: str) -> None:
    profile = trace(folders[name])["otherData"]
    columns = profile["parts"]
    assert list(columns) == (["main process"] if name == "serial" else ["main process", "per worker"])
    for parts in columns.values():
        assert sum(parts.values()) == pytest.approx(profile["seconds"], abs=1e-6)
        assert min(parts.values()) >= 0
    for part in ("train", "evaluate", "encode", "decode", "write", "load"):
        assert list(columns.values())[-1][part] > 0


@pytest.mark.parametrize("name", ["serial", "pool"])
def test_the_spans_of_a_track_nest(folders: dict[str, Path], name: str) -> None:
    content = trace(folders[name])
    tracks: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for event in content["traceEvents"]:
        if event["ph"] == "X":
            assert event["name"]
            assert event["cat"] in PARTS
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            tracks.setdefault((event["pid"], event["tid"]), []).append(event)
    assert {process for process, _ in tracks} == ({0} if name == "serial" else {0, 1, 2})
    for events in tracks.values():
        open_until: list[float] = []
        for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
            while open_until and open_until[-1] <= event["ts"] + MICROSECOND:
                open_until.pop()
            end = event["ts"] + event["dur"]
            assert not open_until or end <= open_until[-1] + MICROSECOND
            open_until.append(end)
    names = {event["name"] for events in tracks.values() for event in events}
    assert {"round 1", "round 2", "checkpoint 2", "write state", "load client"} <= names


def test_without_a_recorder_nothing_is_measured() -> None:
    assert span("train", "a") is timed("train")  # one shared context that does nothing
    items = iter([1])
    assert spans("train", "a", items) is items


def test_the_time_of_a_part_excludes_the_spans_inside() -> None:
    recorder = Recorder()
    with recording(recorder), span("server", "outer"):
        with timed("train"):
            sum(range(20_000))
        assert list(spans("wait", "next", iter([1, 2]))) == [1, 2]
    recorder.finish()
    (outer,) = [one for one in recorder.spans["main"] if one[1] == "outer"]
    parts = recorder.parts["main"]
    assert parts["server"] + parts["train"] + parts["wait"] == pytest.approx(outer[3])
    assert "training steps" in format_table(recorder)


def test_workers_wait_for_the_last_one_of_a_call() -> None:
    recorder = Recorder()
    recorder.add_workers(3)
    for worker, start, seconds in ((0, 10.0, 1.0), (1, 10.0, 4.0), (0, 11.0, 1.0)):
        times = {"parts": {"train": seconds}, "spans": [["train", "c0: train", start, seconds]]}
        recorder.add_worker_times(worker, times, call=1)
    recorder.finish()
    assert [recorder.workers[n].parts.get("stragglers", 0.0) for n in range(3)] == [2.0, 0.0, 4.0]


def test_clocks_of_other_machines_are_shifted_and_tasks_do_not_overlap() -> None:
    recorder = Recorder()
    for start in (500.0, 501.0):
        times = {"parts": {"train": 1.0}, "spans": [["train", "c0: train", start, 1.0]]}
        recorder.add_worker_times(0, times, call=1, end=20.0)
    assert [one[2] for one in recorder.workers[0].spans] == [19.0, 20.0]


@pytest.mark.parametrize(
    "times",
    [
        [],
        {"parts": {"train": 1.0}},
        {"parts": {"sleep": 1.0}, "spans": []},
        {"parts": {"train": -1.0}, "spans": []},
        {"parts": {"train": float("nan")}, "spans": []},
        {"parts": {}, "spans": [["train", 3, 0.0, 1.0]]},
        {"parts": {}, "spans": [["train", "a", 0.0, True]]},
        {"parts": {}, "spans": [["train", "a", 0.0, 1.0]] * 10_001},
    ],
)
def test_invalid_times_of_a_worker_are_refused(times: Any) -> None:
    with pytest.raises(PayloadError, match="the profile of a worker is malformed"):
        Recorder().add_worker_times(0, times)
