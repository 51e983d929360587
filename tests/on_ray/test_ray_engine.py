"""The Ray engine: affinity, work stealing, answer order, storage of states, deaths and timeouts."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from polyfed.core.codec import decode, encode
from polyfed.core.engine import Answer, Call, Task
from polyfed.engines.ray_cluster import Cluster, WorkerResources
from polyfed.engines.ray_engine import RayEngine
from polyfed.errors import InputError, RunError
from polyfed.runs.state_store import FolderStore

pytestmark = pytest.mark.usefixtures("cluster")

MAKER = "ray_echo_host:make"
ECHO = '''
import os, signal, time
from polyfed.core.codec import decode, encode
from polyfed.core.engine import Answer

class Echo:
    """Returns what it received, after it did what the orders say. Its state is a list of calls."""
    def __init__(self, description, files, store):
        self.folder, self.store, self.live = description["folder"], store, {}

    def holds(self, client, version):
        return self.live.get(client, (0, ""))[0] == version

    def handle(self, call, task, shared, alone=True):
        orders = dict(decode(task.own)) if task.own else {}
        time.sleep(orders.get("sleep", 0.0))
        deaths = len([n for n in os.listdir(self.folder) if n.startswith(f"died-{task.client}.")])
        if deaths < orders.get("die", 0):
            open(os.path.join(self.folder, f"died-{task.client}.{deaths}"), "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        held = self.holds(task.client, task.base)
        seen = ""
        if task.base:
            seen = self.live[task.client][1] if held else self.store.read(task.client, task.base).decode()
        seen += f" {call.number}"
        self.store.write(task.client, call.number, [seen.encode()])
        self.live[task.client] = (call.number, seen)
        if orders.get("forget"):
            del self.live[task.client]
        x, payload = decode(shared).number("x"), orders.get("payload")
        reply = {"pid": os.getpid(), "shared": x, "payload": payload, "held": held}
        return Answer(task.client, encode(reply).data, seconds=orders.get("sleep", 0.001))

def make(description, files, store):
    if description.get("broken"):
        raise ValueError("no such thing")
    return Echo(description, files, store)
'''


class Asked:
    """An engine of echo workers, and the state version of every client."""

    def __init__(self, folder: Path, **more: Any) -> None:
        self.store = FolderStore(folder / "states")
        (folder / "ray_echo_host.py").write_text(ECHO)
        description = {"folder": str(folder), "search": [str(folder)], **more.pop("description", {})}
        workers = more.pop("workers", 2)
        self._settings: tuple[Any, ...] = (MAKER, description, [], self.store, workers)
        self._options = more
        self.engine = self.new_engine()
        self.versions: dict[str, int] = {}
        self.number = 0

    def new_engine(self) -> RayEngine:
        return RayEngine(Cluster(None, 2, WorkerResources(1.0, 0.0)), *self._settings, **self._options)

    def restart(self) -> None:
        """Start new workers."""
        self.engine.stop()
        self.engine = self.new_engine()
        self.wait()

    def wait(self) -> None:
        """Wait until both workers have started, which takes long on a busy machine."""
        for _ in range(100):
            if len(set(pids(self.ask(names("w", 4, sleep=0.2))).values())) == 2:
                break

    def answers(self, orders: Mapping[str, Mapping[str, Any]]) -> Iterator[Answer]:
        self.number += 1
        tasks = [
            Task(name, self.versions.get(name, 0), encode(order).data if order else b"")
            for name, order in orders.items()
        ]
        call = Call(self.number, 1, ("echo",), ("echo",))
        for answer in self.engine.call(call, encode({"x": float(self.number)}).data, tasks):
            if answer.failure is None:
                self.versions[answer.client] = self.number
            yield answer

    def ask(self, orders: Mapping[str, Mapping[str, Any]]) -> dict[str, Answer]:
        return {answer.client: answer for answer in self.answers(orders)}

    def state(self, client: str) -> str:
        return self.store.read(client, self.versions[client]).decode()


@pytest.fixture(scope="module")
def asked(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    """Return one engine for all tests that do not kill workers."""
    made = Asked(tmp_path_factory.mktemp("echo"))
    made.wait()
    yield made
    made.engine.close()


def pids(answers: Mapping[str, Answer]) -> dict[str, float]:
    return {name: decode(answer.frame).number("pid") for name, answer in answers.items()}


def names(letter: str, count: int, **order: Any) -> dict[str, Mapping[str, Any]]:
    return {f"{letter}{k}": order for k in range(count)}


def test_answers_come_in_task_order(asked: Asked) -> None:
    orders = {f"a{k}": {"sleep": 0.05 * (5 - k)} for k in range(6)}
    answers = asked.ask(orders)
    assert list(answers) == list(orders)
    assert all(decode(a.frame).number("shared") == asked.number for a in answers.values())


def test_clients_stay_with_their_actor(asked: Asked) -> None:
    # long enough that an actor does not become idle early, and takes a client of the other, on a busy machine
    first = asked.ask(names("b", 4, sleep=0.5))
    second = asked.ask(names("b", 4, sleep=0.5))
    assert pids(second) == pids(first) and len(set(pids(first).values())) == 2
    assert all(decode(answer.frame)["held"] for answer in second.values())


def test_an_idle_actor_gets_the_state_with_the_task(asked: Asked) -> None:
    asked.ask(names("d", 12, sleep=0.03))
    before = asked.number
    # half of them belong to one actor, which is held up by d0; two or three are with it already
    answers = asked.ask({**names("d", 12, sleep=0.03), "d0": {"sleep": 4.0}})
    at = pids(answers)
    assert sum(pid != at["d0"] for pid in at.values()) >= 8
    moved = [name for name, answer in answers.items() if not decode(answer.frame)["held"]]
    assert moved and all(asked.state(name) == f" {before} {asked.number}" for name in answers)


def test_a_state_is_stored_before_its_answer_is_accepted(asked: Asked) -> None:
    for answer in asked.answers(names("e", 5)):
        assert asked.store.read(answer.client, asked.number).decode() == f" {asked.number}"


def test_a_dropped_state_is_sent_with_the_task(asked: Asked) -> None:
    asked.ask(names("f", 3, forget=True))
    before = asked.number
    answers = asked.ask(names("f", 3))
    assert all(answer.failure is None for answer in answers.values())
    assert [asked.state(name) for name in answers] == [f" {before} {asked.number}"] * 3


def test_unneeded_states_are_discarded(asked: Asked) -> None:
    asked.ask(names("g", 1))
    first = asked.number
    asked.number += 1
    task = Task("g0", first, discard=(first,))
    list(asked.engine.call(Call(asked.number, 1, ("echo",), ("echo",)), encode({"x": 1.0}).data, [task]))
    assert not asked.store.path("g0", first).exists() and asked.store.path("g0", asked.number).exists()


def test_a_missing_state_is_a_storage_failure(asked: Asked) -> None:
    asked.versions["h0"] = 999
    answers = asked.ask(names("h", 2))
    failure = answers["h0"].failure
    assert failure is not None and failure.kind == "storage" and "client h0 after call 999" in failure.message
    assert answers["h1"].failure is None


def test_large_payloads_in_both_directions(asked: Asked) -> None:
    block = torch.arange(1_000_000, dtype=torch.float32)
    answers = asked.ask({f"i{k}": {"payload": block + k} for k in range(6)})
    for k, answer in enumerate(answers.values()):
        assert torch.equal(decode(answer.frame).tensor("payload"), block + k)


def test_a_caller_may_stop_in_the_middle_of_a_call(asked: Asked) -> None:
    answers = asked.answers(names("j", 6, sleep=0.03))
    assert next(answers).client == "j0"
    answers.close()  # type: ignore[attr-defined]
    asked.versions = {}
    again = asked.ask(names("j", 6))
    assert [asked.state(name) for name in again] == [f" {asked.number}"] * 6


def test_actor_memory_is_counted(asked: Asked) -> None:
    asked.ask(names("k", 2))
    assert asked.engine.peak_memory() > 100 << 20  # two processes with torch


def test_actors_that_die_in_a_call_and_between_calls_are_replaced(asked: Asked) -> None:
    before = pids(asked.ask(names("l", 4)))
    first = asked.number
    answers = asked.ask({**names("l", 4), "l1": {"die": 1}})
    assert list(answers) == [f"l{k}" for k in range(4)]
    assert all(answer.failure is None for answer in answers.values())
    assert pids(answers)["l1"] != before["l1"]
    killed = pids(answers)["l0"]
    os.kill(int(killed), signal.SIGKILL)
    third = asked.ask(names("l", 4))
    assert killed not in pids(third).values()
    assert [asked.state(name) for name in third] == [f" {first} {first + 1} {first + 2}"] * 4


def test_clients_that_kill_actors_or_time_out_fail(asked: Asked) -> None:
    asked.engine.timeout = 8.0  # actors that died start again within this time
    answers = asked.ask({**names("m", 4), "m1": {"die": 99}, "m2": {"sleep": 60.0}})
    asked.engine.timeout = None
    kills, late = answers["m1"].failure, answers["m2"].failure
    assert kills is not None and kills.kind == "died" and "3 times" in kills.message
    assert late is not None and late.kind == "timeout" and "within 8" in late.message
    assert answers["m0"].failure is None and answers["m3"].failure is None


def test_more_workers_than_fit_are_refused() -> None:
    with pytest.raises(InputError, match=r"engine.workers is 5, but .* room for 2 workers with 1 CPUs each"):
        Cluster(None, None, WorkerResources(1.0, 0.0)).worker_count(5, 20)
    with pytest.raises(InputError, match="no node of the Ray cluster has 1 CPUs and 1 GPUs"):
        Cluster(None, None, WorkerResources(1.0, 1.0)).worker_count(None, 20)
    assert Cluster(None, None, WorkerResources(0.5, 0.0)).worker_count(None, 20) == 4
    assert Cluster(None, None, WorkerResources(0.5, 0.0)).worker_count(None, 3) == 3


def test_a_failed_setup_is_reported(asked: Asked, tmp_path: Path) -> None:
    asked.engine.stop()  # there is room for two workers only
    broken = Asked(tmp_path, workers=1, description={"broken": True})
    with pytest.raises(RunError, match="ValueError: no such thing"):
        broken.ask({"o0": {}})
    broken.engine.close()
    asked.restart()
