"""Mutate 200,000 messages at random and count what becomes of them. No mutation may raise an error that is not caught.

    python scripts/reliability/mutated_messages.py --count 200000

Messages of several methods are recorded in real rounds. Three fifths of the mutations are replies of clients, as the
coordinator decodes and checks them; one fifth are the JSON headers of replies; one fifth are messages to clients,
which a client's host decodes and, if they are valid, trains with. Half of the mutated frames get a valid digest.
"""

from __future__ import annotations

import argparse
import resource
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
from scripts.reliability import results
from scripts.reliability.mutations import mutated, mutated_json, with_valid_digest
from tests.small import SMALL

from polyfed.config import parse
from polyfed.core.client_host import Host
from polyfed.core.door import Door
from polyfed.core.engine import Answer, Call, Task
from polyfed.core.message_header import read_header
from polyfed.core.rounds import one_torch_thread
from polyfed.core.step import combined
from polyfed.engines import framing
from polyfed.engines.flower import SiteMessage, parse_reply
from polyfed.engines.serial import SerialEngine
from polyfed.federation.simulation import build_federation
from polyfed.testing.engine_wrappers import EngineWrapper
from polyfed.testing.rounds import MemoryStore, run_on_serial

METHODS = ("fedavg", "fedproto", "fedl2g", "fedgen", "dffke", "scaffold", "feddistill", "fedvtc")


@dataclass
class Recorder(EngineWrapper):
    """Records the calls of a run with their tasks and answers."""

    calls: list[tuple[Call, bytes, Task, Answer]] = field(default_factory=list)

    def call(self, call: Call, shared: bytes, tasks: Any) -> Any:
        for task, answer in zip(tasks, self.inner.call(call, shared, tasks), strict=True):
            if call.steps:
                self.calls.append((call, shared, task, answer))
            yield answer


class Target:
    """A method with recorded messages, a door and a host that receive mutations of them."""

    def __init__(self, method: str) -> None:
        settings = {
            "method": {"name": method, **SMALL.get(method, {})},
            "data": {"dataset": "digits", "limit": 60},
            "models": {"group": ["tiny-mlp"]},
            "clients": 3,
            "rounds": 2,
        }
        federation = build_federation(parse(settings))
        roster = federation.profiles()
        recorder = Recorder()
        self.method = federation.method
        self.store = MemoryStore()
        run_on_serial(federation, federation.server(roster), wrap=recorder, store=self.store).checked()
        self.calls = recorder.calls
        self.host = Host(federation, self.store, 1 << 30, 1 << 26)
        self.door = Door(self.method, SerialEngine(self.host), roster, message_limit=1 << 26)

    def reply(self, stream: np.random.Generator) -> str:
        """Let the coordinator check a mutated reply."""
        call, shared, task, answer = self._recorded(stream)
        sent = read_header(shared)
        if task.own:
            sent = sent.joined(read_header(task.own))
        before = len(self.door.stats.failures)
        frame = _mutated_frame(answer.frame, stream)
        self.door._accept(call, Answer(answer.client, frame), combined(self.method, call.steps), sent)
        accepted = len(self.door.stats.failures) == before
        self.door.stats.failures.clear()
        self.door.stats.uploads.clear()
        return "accepted" if accepted else "rejected"

    def header(self, stream: np.random.Generator) -> str:
        """Let the coordinator read a mutated header of a site's reply."""
        _, _, _, answer = self._recorded(stream)
        entries = framing.answer_to_json(answer)
        header = mutated_json({"to": "0" * 64, "answer": entries}, stream)
        if not isinstance(header, dict):
            return "rejected"  # a message without a header is no message
        parsed = parse_reply(answer.client, SiteMessage(header, {"frame": b""}), "0" * 64)
        return "accepted" if parsed.failure is None else "rejected"

    def task(self, stream: np.random.Generator) -> str:
        """Let a client's host run a task with a mutated message."""
        call, shared, task, _ = self._recorded(stream)
        answer = self.host.handle(call, task, _mutated_frame(shared, stream))
        return "accepted" if answer.failure is None else "rejected"

    def _recorded(self, stream: np.random.Generator) -> tuple[Call, bytes, Task, Answer]:
        return self.calls[int(stream.integers(len(self.calls)))]


def _mutated_frame(frame: bytes, stream: np.random.Generator) -> bytes:
    changed = mutated(frame, stream)
    return with_valid_digest(changed) if stream.integers(2) else changed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200_000)
    parser.add_argument("--out", type=Path, default=results.FOLDER)
    chosen = parser.parse_args()
    stream = np.random.Generator(np.random.PCG64(21))
    outcomes: dict[str, Counter[str]] = {kind: Counter() for kind in ("reply", "header", "task")}
    uncaught: list[str] = []
    with one_torch_thread():
        targets = [Target(method) for method in METHODS]
        before = _peak()
        for number in range(chosen.count):
            kind = ("reply", "reply", "reply", "header", "task")[number % 5]
            send: Callable[[np.random.Generator], str] = getattr(targets[int(stream.integers(len(targets)))], kind)
            try:
                outcomes[kind][send(stream)] += 1
            except Exception as error:
                outcomes[kind]["uncaught"] += 1
                uncaught.append(f"{kind}: {type(error).__name__}: {str(error)[:200]}")
                print(uncaught[-1], flush=True)
    figures = {"count": chosen.count, "methods": METHODS, "outcomes": outcomes, "uncaught": uncaught[:20]}
    results.save("mutated-messages", {**figures, "memory_growth_mb": _peak() - before}, chosen.out)
    print(outcomes)
    return 1 if uncaught else 0


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000


if __name__ == "__main__":
    sys.exit(main())
