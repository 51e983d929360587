"""A run that is killed at any moment and resumed gives bit-identical results."""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from scripts.reliability.processes import workers_of
from scripts.reliability.simulation_kills import kill_simulation

from polyfed import api
from polyfed.engines.scheduler import MAX_DEATHS
from polyfed.runs.records import RoundRecord

METHODS: dict[str, dict[str, Any]] = {
    "local": {},
    "fedavg": {"models": {"group": ["tiny-cnn"]}},
    "lg-fedavg": {},
    "feddistill": {},
    "fedproto": {},
}
ROUNDS = 6
# Each method is killed once, on one engine, and resumed on the other.
ENGINES = dict(zip(METHODS, itertools.cycle([("pool", "serial"), ("serial", "pool")])))


def setting(method: str, out: Path, engine: str) -> dict[str, Any]:
    return {
        "config": "quickstart",
        "method": method,
        "rounds": ROUNDS,
        "clients": 6,
        "participation": 0.75,
        "data": {"dataset": "digits", "limit": 400, "partition": {"scheme": "dirichlet", "alpha": 0.5}},
        "checkpoint": {"seconds": 0},
        "engine": {"name": engine, "workers": 2} if engine == "pool" else {"name": engine},
        "out": str(out),
        **METHODS[method],
    }


@cache
def _whole(method: str, folder: Path) -> dict[str, Any]:
    return api.run(**setting(method, folder / f"whole-{method}", "serial"))


def whole_run(method: str, factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the uninterrupted run on the serial engine."""
    return _whole(method, factory.getbasetemp())


@pytest.mark.parametrize("method", METHODS)
def test_kill_9_at_random_moments_then_resume(
    method: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, launcher: Any, events_of: Any
) -> None:
    whole = whole_run(method, tmp_path_factory)
    moments = random.Random(method)
    out = tmp_path / "killed"
    killed_on, resumed_on = ENGINES[method]
    started = launcher.start(setting(method, out, killed_on))
    events_of(out).wait(1, moments.randint(0, ROUNDS - 3))  # the run cannot end before it is killed
    time.sleep(moments.uniform(0, 1) * sum(whole["seconds"]["by_round"]) / ROUNDS)
    os.kill(started.pid, signal.SIGKILL)
    assert started.wait() == -signal.SIGKILL
    assert not (out / "result.json").exists()
    result = api.run(**setting(method, out, resumed_on))
    assert result["state_hash"] == whole["state_hash"]
    for same in ("accuracy", "loss", "bytes", "failures"):
        assert result[same] == whole[same]


class KillsWorkers:
    """An observer that kills a worker in the middle of some rounds."""

    ROUNDS = (2, 4)  # one more, and a task that met them all would rightly be given up
    assert len(ROUNDS) < MAX_DEATHS

    def __init__(self, method: str) -> None:
        self._moments = random.Random(method)
        self._killers: list[threading.Thread] = []
        self.killed: list[int] = []

    def started(self, config: object, folder: Path, done: int) -> None: ...

    def note(self, sentence: str) -> None: ...

    def round_done(self, record: RoundRecord) -> None:
        if record.round + 1 in self.ROUNDS:
            killer = threading.Thread(target=self._kill, args=[0.7 * self._moments.random(), record])
            self._killers.append(killer)
            killer.start()

    def _kill(self, share: float, before: RoundRecord) -> None:
        time.sleep(share * before.seconds["train"])
        victim = self._moments.choice(workers_of(os.getpid()))
        os.kill(victim, signal.SIGKILL)
        self.killed.append(victim)

    def join(self) -> None:
        for killer in self._killers:
            killer.join()


@pytest.mark.parametrize("method", ["fedavg", "fedproto", "local"])
def test_a_worker_killed_in_the_middle_of_a_round(
    method: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    whole = whole_run(method, tmp_path_factory)
    killing = KillsWorkers(method)
    try:
        result = api.run(**setting(method, tmp_path / "run", "pool"), observers=[killing])
    finally:
        killing.join()
    assert len(killing.killed) == len(killing.ROUNDS)
    assert result["state_hash"] == whole["state_hash"]
    assert result["failures"] == []


def test_the_fork_server_killed_in_the_middle_of_rounds(tmp_path: Path) -> None:
    """All workers die with it. The pool starts another fork server and repeats their tasks."""
    figures = kill_simulation(tmp_path, ["zygote"], 5, 0, lambda figures: None, rounds=14)
    assert len(figures["kills"]) == 5
    assert all(run == {"failures": 0, "equal": True} for run in figures["runs"])


def test_ctrl_c_ends_after_the_round_with_a_checkpoint(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, launcher: Any, events_of: Any
) -> None:
    out = tmp_path / "stopped"
    chosen = {**setting("fedproto", out, "pool"), "checkpoint": {"seconds": 1000}}
    stopped = launcher.start(chosen, ctrl_c=3)
    assert stopped.wait() == 130
    assert stopped.error == f"stopped after round 3; resume with: polyfed resume {out}"
    events = events_of(out)
    assert [event["round"] for event in events.of("stopped")] == [3] and events.round() == 3
    assert [path.name for path in (out / "checkpoint").glob("*.polyfed")] == ["round-000003.polyfed"]
    assert api.resume(out)["state_hash"] == whole_run("fedproto", tmp_path_factory)["state_hash"]
    assert len(events.of("round")) == ROUNDS  # nothing was done twice


def test_two_processes_cannot_use_one_folder(tmp_path: Path) -> None:
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
