"""Kill the processes of a simulation at random moments: main process, worker, fork server."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from scripts.reliability.processes import FORK_SERVER, children, kill, workers_of
from tests import warm_processes

from polyfed import api
from polyfed.runs.records import RoundRecord

ROUNDS = 40  # of one run; a new run starts when it has finished
WAIT_SECONDS = 400.0
AT_START = 0.25  # fraction of kills of the main process while it starts
SETTING: dict[str, Any] = {
    "method": {"name": "fedproto"},
    "clients": 4,
    "participation": 0.75,
    "data": {"dataset": "digits", "limit": 200, "partition": {"scheme": "dirichlet", "alpha": 0.5}},
    "models": {"group": ["tiny-mlp", "tiny-cnn"]},
    "evaluate": {"every": 10},
    "checkpoint": {"seconds": 0.0},
    "engine": {"name": "pool", "workers": 2},
}
Save = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class _Plan:
    """What is killed, how often and at which moments; the kills so far, and how to save them."""

    target: str
    moments: int
    draws: random.Random
    kills: list[dict[str, Any]]
    save: Callable[[], None]


def kill_simulation(
    folder: Path, targets: Sequence[str], moments: int, seed: int, save: Save, *, rounds: int = ROUNDS
) -> dict[str, Any]:
    """Kill the main process (`main`), a worker (`worker`) or the fork server (`zygote`) of a run on the pool."""
    (target,) = targets
    draws = random.Random(f"{target}-{seed}")
    setting = {**SETTING, "rounds": rounds}
    whole = api.run({**setting, "engine": {"name": "serial"}}, out=folder / "whole")
    figures: dict[str, Any] = {"seed": seed, "kills": [], "runs": []}
    kills = figures["kills"]
    while len(kills) < moments:
        out = folder / f"run{len(figures['runs'])}"
        kill_in_run = _kill_main if target == "main" else _kill_child
        result = kill_in_run(setting, out, _Plan(target, moments, draws, kills, lambda: save(figures)))
        equal = result["state_hash"] == whole["state_hash"] and result["failures"] == whole["failures"]
        figures["runs"].append({"failures": len(result["failures"]), "equal": equal})
        save(figures)
    return figures


def _kill_main(setting: dict[str, Any], out: Path, plan: _Plan) -> dict[str, Any]:
    """Start a run and kill it, again and again, until it has finished. Return its result."""
    config = out.with_suffix(".yaml")
    config.write_text(yaml.safe_dump(setting))
    killed_at: float | None = None
    while not (out / "result.json").exists():
        before = _rounds(out)
        at_start, span = plan.draws.random() < AT_START, plan.draws.random()
        process = warm_processes.Process("-m", "polyfed", "run", str(config), "--out", str(out), "--quiet")
        deadline = time.monotonic() + (2 * span if at_start and len(plan.kills) < plan.moments else WAIT_SECONDS)
        while process.poll() is None and time.monotonic() < deadline and _rounds(out) == before:
            time.sleep(0.01)
        if killed_at is not None and _rounds(out) > before:
            plan.kills[-1]["seconds"], killed_at = round(time.monotonic() - killed_at, 1), None
        if len(plan.kills) < plan.moments and process.poll() is None:
            time.sleep(0 if at_start else span)
            if process.poll() is None:
                kill(process.pid)
                writing = any((out / "checkpoint").glob("**/*.new"))
                started = _rounds(out) > before
                plan.kills.append(
                    {"target": plan.target, "phase": "write" if writing else "round" if started else "start"}
                )
                killed_at = time.monotonic()
        process.wait(WAIT_SECONDS)
        plan.save()
    result: dict[str, Any] = json.loads((out / "result.json").read_text())
    return result


def _rounds(out: Path) -> int:
    """Return the number of finished rounds, repeated ones included."""
    try:
        return (out / "events.jsonl").read_bytes().count(b'"event": "round"')
    except FileNotFoundError:
        return 0


class _Killer(threading.Thread):
    """An observer of a run, and a thread that kills a worker or the fork server between two rounds of it."""

    def __init__(self, plan: _Plan) -> None:
        super().__init__(daemon=True)
        self._plan = plan
        self._round_done = threading.Condition()
        self._rounds, self._round_seconds, self._ended = 0, 0.1, False

    def started(self, config: Any, folder: Path, done: int) -> None: ...

    def note(self, sentence: str) -> None: ...

    def round_done(self, record: RoundRecord) -> None:
        with self._round_done:
            self._rounds, self._round_seconds = record.round, record.seconds["total"]
            self._round_done.notify()

    def end(self) -> None:
        with self._round_done:
            self._ended = True
            self._round_done.notify()
        self.join()

    def run(self) -> None:
        while len(self._plan.kills) < self._plan.moments and self._wait_for_next_round():
            time.sleep(self._plan.draws.random() * min(self._round_seconds, 1.0))
            own = os.getpid()
            victims = workers_of(own) if self._plan.target == "worker" else children(own, FORK_SERVER)
            if not victims:
                continue
            start = time.monotonic()
            kill(self._plan.draws.choice(victims))
            self._plan.kills.append({"target": self._plan.target, "phase": "round"})
            if self._wait_for_next_round():
                self._plan.kills[-1]["seconds"] = round(time.monotonic() - start, 1)
            self._plan.save()

    def _wait_for_next_round(self) -> bool:
        """Wait for the end of a round. Return False if the run has ended."""
        with self._round_done:
            before = self._rounds
            self._round_done.wait_for(lambda: self._ended or self._rounds > before)
            return not self._ended


def _kill_child(setting: dict[str, Any], out: Path, plan: _Plan) -> dict[str, Any]:
    """Run once, while a thread kills workers or the fork server. Return the result."""
    killer = _Killer(plan)
    killer.start()
    try:
        return api.run(setting, out=out, observers=[killer])
    finally:
        killer.end()
