"""Trackers with the real libraries: their files are read back, and an error in a tracker never fails a run."""

from __future__ import annotations

import importlib
import json
import os
import socket
import struct
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests import warm_processes

import polyfed
from polyfed.config import parse
from polyfed.errors import InputError
from polyfed.trackers import create_trackers

pytestmark = pytest.mark.xdist_group("trackers")
SMALL: dict[str, Any] = {"rounds": 3, "clients": 3, "data": {"limit": 120}, "engine": {"name": "serial"}}
HERE = "tests.trackers.test_trackers"


def run(out: Path, *trackers: str, **more: Any) -> dict[str, Any]:
    return polyfed.run("quickstart", method="fedproto", out=out, track=list(trackers), **{**SMALL, **more})


def notes(folder: Path) -> list[str]:
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return [event["message"] for event in events if event["event"] == "note"]


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Run an experiment with all three trackers."""
    folder = tmp_path_factory.mktemp("tracked") / "run"
    return folder, run(folder, "tensorboard", "mlflow", "wandb")


def test_no_tracker_failed(tracked: tuple[Path, dict[str, Any]]) -> None:
    assert [note for note in notes(tracked[0]) if "tracker" in note] == []


def test_tensorboard(tracked: tuple[Path, dict[str, Any]]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder, result = tracked
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    accuracy = events.Scalars("accuracy/personal")
    assert [event.step for event in accuracy] == [1, 2, 3]
    assert [event.value for event in accuracy] == pytest.approx(result["accuracy"]["personal"]["by_round"], abs=1e-6)
    assert [event.value for event in events.Scalars("bytes/up")] == result["bytes"]["up_by_round"]


def test_mlflow(tracked: tuple[Path, dict[str, Any]]) -> None:
    from mlflow import MlflowClient

    folder, result = tracked
    client = MlflowClient((folder.parent / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("polyfed")
    assert experiment is not None
    (mlflow_run,) = client.search_runs([experiment.experiment_id])
    assert mlflow_run.info.status == "FINISHED"
    assert mlflow_run.data.params["method.name"] == "fedproto" and mlflow_run.data.params["train.lr"] == "0.01"
    history = client.get_metric_history(mlflow_run.info.run_id, "loss")
    assert [(point.step, point.value) for point in history] == list(enumerate(result["loss"]["by_round"], 1))


def records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a .wandb file: 7 bytes, then 32 KiB blocks of parts (checksum, length, kind, content)."""
    at, record = 7, b""
    while at + 7 <= len(data):
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in {1, 4}:  # all of a record, or its last part
            yield record
            record = b""
        if 32768 - at % 32768 < 7:  # too little for another part: the rest of the block is empty
            at += 32768 - at % 32768


def test_wandb(tracked: tuple[Path, dict[str, Any]]) -> None:
    protocol = importlib.import_module("wandb.proto.wandb_internal_pb2")
    folder, result = tracked
    (file,) = (folder / "tracking" / "wandb").glob("offline-run-*/*.wandb")
    losses = []
    for data in records(file.read_bytes()):
        record = protocol.Record()
        record.ParseFromString(data)
        named = {item.key or item.nested_key[0]: item.value_json for item in record.history.item}
        if "loss" in named:
            losses.append(json.loads(named["loss"]))
    assert losses == pytest.approx(result["loss"]["by_round"])


def test_trackers_change_no_result(tracked: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    untracked = run(tmp_path / "untracked")
    assert all(untracked[key] == tracked[1][key] for key in ("state_hash", "config_hash"))


def test_the_config_hash_does_not_depend_on_trackers() -> None:
    assert parse({"track": ["mlflow"]}).hash() == parse({}).hash() != parse({"seed": 1}).hash()


# custom trackers and their errors


class Recorder:
    """Tracker that records its calls."""

    needs: ClassVar[tuple[str, ...]] = ()
    calls: ClassVar[list[Any]] = []

    def start(self, name: str, folder: Path, config: Mapping[str, Any], done: int) -> None:
        self.calls.append(("start", folder.name, config["method"]["name"], done))

    def log(self, number: int, values: Mapping[str, float]) -> None:
        self.calls.append((number, sorted(values)))

    def finish(self, state: str) -> None:
        self.calls.append(state)


class FailsInRoundTwo(Recorder):
    calls: ClassVar[list[Any]] = []

    def log(self, number: int, values: Mapping[str, float]) -> None:
        super().log(number, values)
        if number == 2:
            raise OSError("the disk is\nfull")


class Exits(Recorder):
    def start(self, name: str, folder: Path, config: Mapping[str, Any], done: int) -> None:
        sys.exit(3)


class FailsAtTheEnd(Recorder):
    def finish(self, state: str) -> None:
        raise ValueError("at the end")


class NeedsMore(Recorder):
    needs: ClassVar[tuple[str, ...]] = ("no_such_package_here",)


def test_custom_tracker_by_module_and_class(tmp_path: Path) -> None:
    kind = _imported("Recorder")
    kind.calls.clear()
    run(tmp_path / "mine", f"{HERE}:Recorder")
    assert kind.calls[0] == ("start", "mine", "fedproto", 0) and kind.calls[-1] == "finished"
    assert [call[0] for call in kind.calls[1:-1]] == [1, 2, 3]
    assert {"accuracy/personal", "accuracy/global", "loss", "bytes/up", "bytes/down", "failures"} <= set(
        kind.calls[1][1]
    )


def test_failing_trackers_are_noted_once_and_do_not_fail_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kind = _imported("FailsInRoundTwo")
    kind.calls.clear()
    result = run(tmp_path / "run", *(f"{HERE}:{name}" for name in ("FailsInRoundTwo", "Exits", "FailsAtTheEnd")))
    assert (
        len(result["loss"]["by_round"]) == 3 and json.loads((tmp_path / "run" / "result.json").read_text()) == result
    )
    tracker_notes = [note for note in notes(tmp_path / "run") if "tracker" in note]
    assert tracker_notes == [record.getMessage() for record in caplog.records if record.name == "polyfed"]
    assert [note.removeprefix(f"the tracker {HERE}:") for note in tracker_notes] == [
        "Exits failed and is switched off: SystemExit: 3",
        "FailsInRoundTwo failed and is switched off: OSError: the disk is full",
        "FailsAtTheEnd failed and is switched off: ValueError: at the end",
    ]
    assert [call[0] for call in kind.calls] == ["start", 1, 2]  # not called again, not even to finish


def test_invalid_trackers_raise_before_the_run(tmp_path: Path) -> None:
    for name, words in (
        ("tensorbord", "did you mean"),
        (f"{HERE}:NeedsMore", "no_such_package_here, which is not installed"),
        (f"{HERE}:Nothing", "cannot be imported"),
        ("no.such.module:Tracker", "cannot be imported"),
        ("pathlib:Path", "is not a tracker: it has no method start and no log and no finish"),
    ):
        with pytest.raises(InputError) as caught:
            run(tmp_path / "run", name)
        assert words in str(caught.value)
        assert not (tmp_path / "run").exists()


def test_missing_package_names_the_extra() -> None:
    code = (
        "import importlib.util as u; real = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'mlflow' else real(name, *rest)\n"
        "from polyfed.trackers import create_trackers; create_trackers(['mlflow'])"
    )
    done = warm_processes.run("-c", code)
    assert (
        "track: mlflow needs the package mlflow, which is not installed: pip install 'polyfed[mlflow]'" in done.stderr
    )


def test_built_in_trackers_can_be_created() -> None:
    assert [type(one).__name__ for one in create_trackers(["tensorboard", "mlflow", "wandb"])] == [
        "TensorBoard",
        "MLflow",
        "WandB",
    ]


def test_resumed_run_continues_in_the_same_tracker_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop a run by SIGTERM and resume it: MLflow has each round once."""
    from mlflow import MlflowClient

    folder = tmp_path / "run"
    script = (
        "import os, signal, sys, polyfed\n"
        "class Stop:\n"
        "    def started(self, *_): pass\n"
        "    def note(self, _): pass\n"
        "    def round_done(self, record):\n"
        "        if record.round == 2: os.kill(os.getpid(), signal.SIGTERM)\n"
        "polyfed.run('quickstart', method='local', out=sys.argv[1], rounds=4, clients=2, data={'limit': 80},\n"
        "            engine={'name': 'serial'}, track=['tensorboard', 'mlflow'], observers=[Stop()])\n"
    )
    done = warm_processes.run("-c", script, str(folder))
    assert "stopped after round" in done.stderr
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # as polyfed sets it in the process of the run
    client = MlflowClient((tmp_path / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("polyfed")
    assert experiment is not None
    (mlflow_run,) = client.search_runs([experiment.experiment_id])
    assert mlflow_run.info.status == "KILLED"
    polyfed.resume(folder)
    (mlflow_run,) = client.search_runs([experiment.experiment_id])
    assert mlflow_run.info.status == "FINISHED"
    assert [point.step for point in client.get_metric_history(mlflow_run.info.run_id, "loss")] == [1, 2, 3, 4]


def test_trackers_open_no_network_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace `connect`: every byte that leaves this machine needs a connection."""
    attempts = []
    real = socket.socket.connect

    def connect(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX and str(address[0]) not in {"127.0.0.1", "::1", "localhost"}:
            attempts.append(address)
            raise OSError("no network")
        real(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect)
    run(tmp_path / "run", "tensorboard", "mlflow", "wandb", rounds=1)
    assert attempts == [] and [note for note in notes(tmp_path / "run") if "tracker" in note] == []
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"


def _imported(name: str) -> Any:
    return getattr(importlib.import_module(HERE), name)
