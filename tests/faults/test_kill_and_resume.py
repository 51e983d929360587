"""A run that is killed at any moment and resumed ends with the bits of one that was not."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from polyfed import api
from polyfed.engines.pool import DEATHS

METHODS: dict[str, dict[str, Any]] = {
    "local": {},
    "fedavg": {"models": {"group": ["tiny-resnet"]}},
    "lg-fedavg": {},
    "feddistill": {},
    "fedproto": {},
}
ROUNDS = 8
KILLS = 2  # for each of the five methods: ten in all
SCRIPT = "import json, sys; from polyfed import api; api.run(**json.loads(sys.argv[1]))"


def setting(method: str, out: Path, engine: str) -> dict[str, Any]:
    return {
        "source": "quickstart",
        "method": method,
        "rounds": ROUNDS,
        "clients": 8,
        "participation": 0.75,
        "checkpoint": {"seconds": 0},
        "engine": {"name": engine, "workers": 2} if engine == "pool" else {"name": engine},
        "out": str(out),
        **METHODS[method],
    }


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    path = folder / "events.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [e for e in map(_parsed, lines) if e.get("event") == kind]


def _parsed(line: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(line)
        return found
    except json.JSONDecodeError:
        return {}  # a line that is being written


@pytest.mark.parametrize("method", METHODS)
def test_kill_9_at_random_moments_then_resume(method: str, tmp_path: Path) -> None:
    whole = api.run(**setting(method, tmp_path / "whole", "serial"))
    moments = random.Random(method)
    out = tmp_path / "killed"
    script = [sys.executable, "-c", SCRIPT, json.dumps(setting(method, out, "pool"))]
    for kill in range(KILLS):
        process = subprocess.Popen(script, start_new_session=True)
        deadline = time.monotonic() + 120
        begun = len(events(out, "started") + events(out, "resumed"))
        while len(events(out, "started") + events(out, "resumed")) == begun:
            assert process.poll() is None and time.monotonic() < deadline, "the run did not begin"
            time.sleep(0.01)
        time.sleep(moments.uniform(0, 0.25 * sum(whole["seconds"]["by_round"])))
        process.kill()
        process.wait()
        assert not (out / "result.json").exists() or kill > 0
    result = api.resume(out)
    assert result["state_hash"] == whole["state_hash"]
    for same in ("accuracy", "loss", "bytes", "failures"):
        assert result[same] == whole[same]


@pytest.mark.parametrize("method", ["fedavg", "fedproto"])
def test_a_worker_killed_in_the_middle_of_a_round(method: str, tmp_path: Path) -> None:
    whole = api.run(**setting(method, tmp_path / "whole", "serial"))
    killed: list[int] = []
    finished = threading.Event()

    def kill_workers() -> None:
        moments = random.Random(method)
        while not finished.is_set():
            time.sleep(moments.uniform(0.05, 0.2))
            alive = workers_of(os.getpid())
            if alive and events(tmp_path / "run", "round"):
                victim = moments.choice(alive)
                os.kill(victim, signal.SIGKILL)
                killed.append(victim)
            if len(killed) >= DEATHS - 1:  # one more, and a task that met them all would rightly be given up
                return

    killer = threading.Thread(target=kill_workers)
    killer.start()
    try:
        result = api.run(**setting(method, tmp_path / "run", "pool"))
    finally:
        finished.set()
        killer.join()
    assert killed
    assert result["state_hash"] == whole["state_hash"]
    assert result["failures"] == []


def workers_of(pid: int) -> list[int]:
    """The processes two below this one: forked from its zygotes."""

    def children(parent: int) -> list[int]:
        tasks = Path(f"/proc/{parent}/task")
        try:
            return [int(c) for task in tasks.iterdir() for c in (task / "children").read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            return []

    return [worker for zygote in children(pid) for worker in children(zygote)]


def test_ctrl_c_ends_after_the_round_with_a_whole_checkpoint(tmp_path: Path) -> None:
    whole = api.run(**setting("fedproto", tmp_path / "whole", "serial"))
    out = tmp_path / "stopped"
    chosen = {**setting("fedproto", out, "pool"), "checkpoint": {"seconds": 1000}}
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, json.dumps(chosen)], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not events(out, "round"):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    process.wait()
    done = len(events(out, "round"))
    assert events(out, "stopped") and done < ROUNDS
    assert [path.name for path in (out / "checkpoint").glob("*.polyfed")] == [f"round-{done:06d}.polyfed"]
    assert api.resume(out)["state_hash"] == whole["state_hash"]
    assert len(events(out, "round")) == ROUNDS  # nothing was done twice


def test_two_processes_do_not_work_on_one_folder(tmp_path: Path) -> None:
    from polyfed.errors import RunError
    from polyfed.runs.folder import RunFolder

    chosen = setting("local", tmp_path / "run", "serial")
    result = api.run(**chosen)
    (tmp_path / "run" / "result.json").unlink()  # as if it had been killed just before its end
    first = RunFolder(tmp_path / "run")
    first.lock()
    with pytest.raises(RunError, match="another process is working on"):
        api.run(**chosen)
    first.unlock()
    assert api.run(**chosen)["state_hash"] == result["state_hash"]
