"""Commands that run: what they print and where, what they skip, how they stop."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests import warm_processes

from polyfed.cli.app import main
from polyfed.cli.output import format_bytes

COMMAND = [sys.executable, "-c", "import sys; from polyfed.cli.app import main; sys.exit(main())"]
SMALL = ["clients=4", "rounds=2", "data.partition.alpha=1", "data.limit=200", "evaluate.global=false"]
SERIAL = [*SMALL, "engine.name=serial"]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_run_on_the_pool_from_the_shell() -> None:
    done = subprocess.run([*COMMAND, "run", "quickstart", *SMALL], capture_output=True, text=True, check=True)
    (folder,) = Path("runs").iterdir()
    assert f"Run folder: {folder}" in done.stdout and "fedproto" in done.stdout and "digits" in done.stdout
    lines = done.stderr.splitlines()
    assert [line.split()[:3] for line in lines] == [["fedproto", "round", f"{k}/2"] for k in (1, 2)]
    result = json.loads((folder / "result.json").read_text())
    assert f"{100 * result['accuracy']['personal']['final']:.2f} %" in done.stdout
    assert f"personal {100 * result['accuracy']['personal']['final']:.2f} %" in lines[1]


def test_json_quiet_and_a_run_that_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", "quickstart", *SERIAL, "--out", "r", "--json"]
    assert main([*arguments, "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert out == Path("r", "result.json").read_text() + "\n" and err == ""
    before = {path: path.stat().st_mtime_ns for path in Path("r").rglob("*")}
    assert main(arguments) == 0
    again = capsys.readouterr()
    assert again.out == out and again.err == "r has finished: nothing to do\n"
    assert main(["resume", "r"]) == 0
    assert "Run folder: r" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in Path("r").rglob("*")} == before


def test_a_stopped_run_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    run = ["run", "quickstart", *SERIAL, "rounds=40", "--out", "r"]
    with warm_processes.Process("-m", "polyfed", *run, stderr=subprocess.PIPE) as child:
        assert child.stderr is not None
        for line in child.stderr:
            if "round 1/40" in line:
                child.send_signal(signal.SIGINT)
    assert child.returncode == 130
    assert "resume with: polyfed resume r" in line
    saved = len([line for line in Path("r", "events.jsonl").read_text().splitlines() if '"event": "round"' in line])
    assert 1 <= saved < 40 and not Path("r", "result.json").exists()
    assert main(run) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "r exists: resuming from its last checkpoint"
    assert lines[1].startswith(f"fedproto round {saved + 1}/40 ")
    assert lines[-1].startswith("fedproto round 40/40 ")
    sent = json.loads(Path("r", "result.json").read_text())["bytes"]
    # rounds before the stop count too
    assert f"{format_bytes(sent['up'])} up, {format_bytes(sent['down'])} down" in lines[-1]


def test_check_writes_nothing_and_shows_the_uploads(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "quickstart", *SERIAL]) == 0
    out, err = capsys.readouterr()
    assert err == "" and list(Path().iterdir()) == []
    for words in ("tiny-mobile", "13,706", "mean feature per class, with counts", "one feature width", "upper bound"):
        assert words in out
    assert main(["check", "quickstart", "clients=60", "data.partition.min_size=1"]) == 0
    summed = capsys.readouterr().out
    assert "min, median, max" in summed and "60 of 60 clients" in summed
    assert main(["check", "quickstart", "clients=7", "data.partition={scheme: pathological}"]) == 0
    assert "Note: " in capsys.readouterr().out  # two of ten classes belong to no client


def test_check_shows_the_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "quickstart", *SMALL]) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line.strip() for line in out[:5]] == [
        "Dataset digits",
        "sample           picture, 1x8x8",
        "classes          10: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9",
        "samples          1,438 training (200 of them held by clients), 359 test",
        "source           bundled with scikit-learn",
    ]
    Path("files").mkdir()
    rows = [f"{k % 7}.5,{k},{'north' if k < 10 else 'south'},{'sick' if k % 5 == 0 else 'well'}" for k in range(40)]
    Path("files", "patients.csv").write_text("\n".join(["dose,age,hospital,outcome", *rows]))
    table = ["data.dataset=ward", "data.root=files", "data.label=outcome", "models.group=tabular4", "clients=2"]
    partition = "data.partition={scheme: column, column: hospital}"
    assert main(["check", "quickstart", *table, partition, "evaluate.global=false"]) == 0
    shown = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    for line in (
        "sample numbers, 2",
        "classes 2: sick, well",
        "samples 40 training, no test split",
        f"source {Path('files').resolve()}, csv files",
        "per client 7, 14.5, 22 training samples, 2, 2, 2 classes (min, median, max)",
    ):
        assert line in shown


def test_check_says_that_files_are_a_subset(capsys: pytest.CaptureFixture[str]) -> None:
    import numpy as np

    Path("files").mkdir()
    np.savez("files/train.npz", x=np.zeros((100, 28, 28), np.uint8), y=np.arange(100) % 10)
    data = ["data.dataset=mnist", "data.root=files", "clients=2", "evaluate.global=false"]
    assert main(["check", "quickstart", *data]) == 0
    source = next(line for line in capsys.readouterr().out.splitlines() if "  source  " in line)
    assert "100 of 60,000 training samples" in source and source.endswith("a subset of the published dataset")


@pytest.mark.parametrize("method", ["local", "lg-fedavg", "feddistill", "fedproto", "fedavg"])
def test_expected_bytes_bound_the_real_ones(method: str, capsys: pytest.CaptureFixture[str]) -> None:
    from polyfed.cli.check import client_summaries
    from polyfed.cli.expected_traffic import estimate_traffic
    from polyfed.config import parse
    from polyfed.config.loading import apply_overrides, read_source
    from polyfed.federation import simulation

    raw = apply_overrides(
        read_source("quickstart"), [*SERIAL, f"method={method}", "models.group=[tiny-mlp]", "train.epochs=0"]
    )
    config = parse(raw)
    federation = simulation.build_federation(config)
    class_counts = [len(client.classes) for client in client_summaries(federation)]
    traffic = estimate_traffic(federation.method, federation.profiles(), class_counts, config.per_round)
    texts = [*SERIAL, f"method={method}", "models.group=[tiny-mlp]", "train.epochs=0", "--out", "r", "--json", "-q"]
    assert main(["run", "quickstart", *texts]) == 0
    real: dict[str, Any] = json.loads(capsys.readouterr().out)["bytes"]
    assert traffic["up"].total.unknown_fields == traffic["down"].total.unknown_fields == ()
    assert real["up_by_round"] == [traffic["up"].total.size] * 2  # every class a client has is reported
    assert all(bytes_ <= traffic["down"].total.size for bytes_ in real["down_by_round"])
    if method in ("local", "lg-fedavg", "fedavg"):
        assert real["down_by_round"] == [traffic["down"].total.size] * 2


def test_participation_bounds_a_round_by_its_largest_clients() -> None:
    from polyfed.cli.expected_traffic import ByteBound, _per_round

    bounds = [ByteBound(5), ByteBound(1), ByteBound(3, ("x",)), ByteBound(2, ("x",))]
    assert _per_round(bounds, 2).total == ByteBound(8, ("x",))
    assert _per_round(bounds, 2).mean == 2.75


def test_a_bug_is_one_sentence_with_its_traceback_in_the_folder(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("wrong.py").write_text(
        "from dataclasses import dataclass\n"
        "from polyfed.core import Method, register\n"
        "@register('wrong-by-design')\n"
        "@dataclass(frozen=True)\n"
        "class WrongByDesign(Method):\n"
        "    def round(self, server, cohort):\n"
        "        raise ZeroDivisionError('of its author')\n"
    )
    arguments = ["run", "quickstart", *SERIAL, "imports=[./wrong.py]", "method=wrong-by-design", "--out", "r", "-q"]
    assert main(arguments) == 1
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1
    assert "ZeroDivisionError: of its author" in err
    last = json.loads(Path("r", "events.jsonl").read_text().splitlines()[-1])
    assert last["event"] == "failed" and "in round" in last["detail"]
    monkeypatch.setenv("POLYFED_DEBUG", "1")
    assert main(arguments) == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_sweep_leaves_out_what_cannot_run_and_skips_what_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    sweep = [
        "sweep",
        "quickstart",
        "method=local,fedavg,feddistill",
        *SERIAL,
        "--seeds",
        "0-1",
        "--out",
        "s",
    ]
    refused = warm_processes.run("-m", "polyfed", *sweep, "--jobs", "1")
    assert refused.returncode == 2 and refused.stdout == "" and not Path("s").exists()
    assert refused.stderr.startswith("polyfed: 1 of 3 settings cannot run, so nothing was started; fedavg-s0: FedAvg")
    assert refused.stderr.endswith("to run the others, add --skip-invalid\n")
    first = subprocess.run([*COMMAND, *sweep, "--skip-invalid"], capture_output=True, text=True, check=True)
    left_out = [line for line in first.stderr.splitlines() if "is left out: FedAvg needs one architecture" in line]
    assert len(left_out) == 1 and "Traceback" not in first.stderr
    assert "Run folders: s" in first.stdout
    names = ["feddistill-s0", "feddistill-s1", "local-s0", "local-s1"]
    assert sorted(path.name for path in Path("s").iterdir()) == names
    rows = [line.split()[:2] for line in first.stdout.splitlines() if line.startswith(("local", "feddistill"))]
    assert rows == [["local", "2"], ["feddistill", "2"]]
    stamps = {path: path.stat().st_mtime_ns for path in Path("s").rglob("*")}
    # the same runs again: nothing is left to do, so no process is started
    good = [part if "fedavg" not in part else "method=local,feddistill" for part in sweep]
    assert main(good) == 0
    assert {path: path.stat().st_mtime_ns for path in Path("s").rglob("*")} == stamps
    assert "baseline" in capsys.readouterr().out
    assert main([*good, "--no-table"]) == 0
    assert capsys.readouterr().out == "Run folders: s\n"


def test_a_sweep_goes_on_past_a_run_that_fails(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    Path("flawed.py").write_text(
        "from dataclasses import dataclass\n"
        "from polyfed.core import register\n"
        "from polyfed.methods.local import Local\n"
        "@register('flawed')\n@dataclass(frozen=True)\n"
        "class Flawed(Local):\n    bad: bool = False\n"
        "    def round(self, server, cohort):\n"
        "        if self.bad: raise ValueError('on purpose')\n        super().round(server, cohort)\n"
        "        print('a round is done')\n"
    )
    sweep = ["sweep", "quickstart", "imports=[flawed.py]", "method=flawed", "method.bad=false,true", *SERIAL]
    assert main([*sweep, "--out", "s", "--jobs", "1"]) == 1
    out, err = capfd.readouterr()
    assert "flawed-bad=true-s0 failed: ValueError: on purpose" in err and "Run folders: s" in out
    assert err.count("a round is done") == 2  # the output of user code is in no buffer that ends with its process
    assert Path("s", "flawed-bad=false-s0", "result.json").exists()


def test_a_killed_sweep_takes_its_processes_along() -> None:
    long = [setting if not setting.startswith("rounds") else "rounds=5000" for setting in SERIAL]
    sweep = ["sweep", "quickstart", *long, "--seeds", "0,1", "--out", "s", "--jobs", "2"]
    child = warm_processes.Process("-m", "polyfed", *sweep)
    while len(_events_with_a_round()) < 2 and child.poll() is None:
        time.sleep(0.05)
    workers = _children_of_threads(child.pid)
    assert len(workers) == 2
    child.kill()
    child.wait()
    end = time.monotonic() + 400
    while any(_runs(pid) for pid in workers):
        assert time.monotonic() < end
        time.sleep(0.1)
    assert not list(Path().glob("s/*/result.json"))


def _children_of_threads(pid: int) -> list[int]:
    return [int(child) for task in Path(f"/proc/{pid}/task").glob("*/children") for child in task.read_text().split()]


def _runs(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_stopped_sweep_leaves_checkpoints_and_no_process() -> None:
    long = [setting if not setting.startswith("rounds") else "rounds=500" for setting in SERIAL]
    sweep = ["sweep", "quickstart", *long, "--seeds", "0,1,2", "--out", "s", "--jobs", "2"]
    child = warm_processes.Process("-m", "polyfed", *sweep, stderr=subprocess.PIPE, new_session=True)
    assert child.stderr is not None
    while len(_events_with_a_round()) < 2 and child.poll() is None:
        time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    said = child.stderr.read()
    child.stderr.close()
    assert child.wait() == 130, said
    assert "run the same command again to resume them" in said
    assert not list(Path().glob("s/*/result.json"))
    for folder in Path("s").iterdir():
        events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
        assert events[-1]["event"] == "stopped", events[-1]


def _events_with_a_round() -> list[Path]:
    """Return the events of runs that have finished a round."""
    return [path for path in Path().glob("s/*/events.jsonl") if '"round"' in path.read_text()]


def test_an_interrupt_outside_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    Path("slow_import.py").write_text("raise KeyboardInterrupt  # as Ctrl-C during an import")
    assert main(["run", "quickstart", *SERIAL, "imports=[./slow_import.py]", "--out", "r"]) == 130
    assert capsys.readouterr() == ("", "polyfed: stopped\n")
    assert not Path("r").exists()
