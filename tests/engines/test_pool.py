"""The pool engine: worker affinity, work stealing, answer order, worker deaths and timeouts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from polyfed.core.codec import decode, encode
from polyfed.core.engine import Answer, Call, Task
from polyfed.devices import DeviceChoice
from polyfed.engines import fork_server
from polyfed.engines.pool import PoolEngine
from polyfed.errors import RunError

HOST_FACTORY = "echo_host:make"
ECHO = '''
import os, signal, time
from polyfed.core.codec import decode, encode
from polyfed.core.engine import Answer, Failure

class Echo:
    """Returns what it received, after it did what the orders say."""
    def __init__(self, description):
        self.folder = description["folder"]
        self.started = 0  # tasks so far

    def free_device(self):
        open(os.path.join(self.folder, f"freed-{os.getpid()}"), "w").close()

    def handle(self, call, task, shared, alone):
        orders = dict(decode(task.own)) if task.own else {}
        if orders.get("large") and not alone:
            return Answer(task.client, failure=Failure("memory", "too large"))
        if orders.get("sleep"):
            time.sleep(orders["sleep"])
        mark = os.path.join(self.folder, f"died-{task.client}")
        deaths = len([n for n in os.listdir(self.folder) if n.startswith(f"died-{task.client}.")])
        if deaths < orders.get("die", 0):
            open(f"{mark}.{deaths}", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        self.started += 1
        reply = {"pid": os.getpid(), "shared": decode(shared).number("x"), "payload": orders.get("payload")}
        reply["start"] = self.started
        return Answer(task.client, encode(reply).data, seconds=orders.get("sleep", 0.0))

def make(description):
    import sys
    if description.get("broken"):
        raise ValueError("no such thing")
    return Echo(description)
'''


@pytest.fixture(scope="module", autouse=True)
def echo_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Start one fork server for all tests. Its forks import the echo host through PYTHONPATH."""
    folder = tmp_path_factory.mktemp("echo")
    (folder / "echo_host.py").write_text(ECHO)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        fork_server.close_spare()  # the next one must see the new path
        fork_server.start_spare()
        yield
        fork_server.close_spare()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    """Return a function that starts pools of echo workers."""
    pools: list[PoolEngine] = []

    def pool(workers: int = 2, **more: Any) -> PoolEngine:
        description: Mapping[str, Any] = {"folder": str(tmp_path), **more.pop("description", {})}
        pools.append(PoolEngine(HOST_FACTORY, description, [DeviceChoice()] * workers, **more))
        return pools[-1]

    yield pool
    for each in pools:
        each.close()


def ask(pool: PoolEngine, orders: Mapping[str, Mapping[str, Any]], number: int = 1) -> list[Answer]:
    tasks = [Task(name, 0, encode(order).data if order else b"") for name, order in orders.items()]
    return list(pool.call(Call(number, 1, ("echo",), ("echo",)), encode({"x": float(number)}).data, tasks))


def test_answers_come_in_task_order(start: Any) -> None:
    pool = start(2)
    orders = {f"c{k}": {"sleep": 0.05 * (5 - k)} for k in range(6)}
    answers = ask(pool, orders)
    assert [a.client for a in answers] == list(orders)
    assert all(a.failure is None and decode(a.frame).number("shared") == 1.0 for a in answers)


def test_costs_change_the_order_of_starts_and_not_the_answers(start: Any) -> None:
    orders: dict[str, Mapping[str, Any]] = {f"c{k}": {"payload": k} for k in range(5)}
    plain, by_cost = (
        [decode(answer.frame) for answer in ask(pool, orders)]
        for pool in (start(1), start(1, costs={f"c{k}": float(k) for k in range(5)}))
    )
    assert [reply.number("payload") for reply in plain] == [reply.number("payload") for reply in by_cost]
    assert [reply.number("start") for reply in plain] == [1, 2, 3, 4, 5]
    assert [reply.number("start") for reply in by_cost] == [5, 4, 3, 2, 1]


def test_clients_stay_with_their_worker(start: Any) -> None:
    pool = start(2)
    orders: dict[str, Mapping[str, Any]] = {f"c{k}": {"sleep": 0.03} for k in range(4)}
    first = {a.client: decode(a.frame).number("pid") for a in ask(pool, orders, 1)}
    second = {a.client: decode(a.frame).number("pid") for a in ask(pool, orders, 2)}
    assert second == first and len(set(first.values())) == 2


def test_an_idle_worker_steals_from_the_longest_queue(start: Any) -> None:
    pool = start(2)
    # in turn: c0, c2, c4, c6 belong to the first worker, which is held up by c0
    orders: dict[str, Mapping[str, Any]] = {f"c{k}": {"sleep": 0.6 if k == 0 else 0.01} for k in range(8)}
    answers = ask(pool, orders)
    pids = {a.client: decode(a.frame).number("pid") for a in answers}
    assert sum(pid != pids["c0"] for pid in pids.values()) >= 6


def test_a_task_that_needs_too_much_memory_is_repeated_alone(start: Any, tmp_path: Path) -> None:
    pool = start(2)  # both workers use one device
    orders: dict[str, Mapping[str, Any]] = {f"c{k}": {"sleep": 0.01, "large": k in (1, 2)} for k in range(6)}
    answers = ask(pool, orders)
    assert [a.client for a in answers] == list(orders)
    assert all(a.failure is None for a in answers)
    assert sorted(tmp_path.glob("freed-*")) == sorted(tmp_path / f"freed-{pid}" for pid in pool.pids)


def test_a_dead_worker_is_replaced_and_its_tasks_run_once(start: Any, tmp_path: Path) -> None:
    pool = start(2)
    before = set(pool.pids)
    answers = ask(pool, {"c0": {}, "c1": {"die": 1}, "c2": {}, "c3": {}})
    assert [a.client for a in answers] == ["c0", "c1", "c2", "c3"]
    assert all(a.failure is None for a in answers)
    assert len(before & set(pool.pids)) == 1


def test_a_task_that_keeps_killing_workers_fails(start: Any) -> None:
    pool = start(2)
    answers = {a.client: a for a in ask(pool, {"c0": {}, "c1": {"die": 99}, "c2": {}})}
    failure = answers["c1"].failure
    assert failure is not None and failure.kind == "died" and "3 times" in failure.message
    assert answers["c0"].failure is None and answers["c2"].failure is None


def test_only_the_late_client_times_out(start: Any) -> None:
    pool = start(2, timeout=4.0)  # others answer in time on a busy machine
    answers = {a.client: a for a in ask(pool, {"c0": {"sleep": 60}, "c1": {}, "c2": {}, "c3": {}})}
    failure = answers["c0"].failure
    assert failure is not None and failure.kind == "timeout" and "4 seconds" in failure.message
    assert all(answers[name].failure is None for name in ("c1", "c2", "c3"))
    assert all(a.failure is None for a in ask(pool, {"c0": {}, "c1": {}}, 2))


def test_workers_killed_between_calls_are_replaced(start: Any) -> None:
    pool = start(2)
    ask(pool, {"c0": {}, "c1": {}}, 1)
    for pid in pool.pids:
        os.kill(pid, signal.SIGKILL)
    time.sleep(0.1)
    assert all(a.failure is None for a in ask(pool, {"c0": {}, "c1": {}, "c2": {}}, 2))


def test_a_caller_may_stop_in_the_middle_of_a_call(start: Any) -> None:
    pool = start(2)
    tasks = [Task(f"c{k}", 0) for k in range(6)]
    answers = pool.call(Call(1, 1, ("echo",), ("echo",)), encode({"x": 1.0}).data, tasks)
    assert next(answers).client == "c0"
    answers.close()
    again = ask(pool, {f"c{k}": {} for k in range(6)}, 2)
    assert [decode(a.frame).number("shared") for a in again] == [2.0] * 6


def test_a_call_may_be_closed_after_its_pool(start: Any) -> None:
    """An error of the run closes the pool first, and Python the call when it deletes it."""
    pool = start(2)
    answers = pool.call(
        Call(1, 1, ("echo",), ("echo",)), encode({"x": 1.0}).data, [Task(f"c{k}", 0) for k in range(6)]
    )
    next(answers)
    pool.close()
    answers.close()
    assert pool.pids == []


def test_a_fork_server_that_is_killed_while_it_is_used_is_replaced(start: Any) -> None:
    pool = start(1)
    first = pool._starter
    os.kill(first._process.pid, signal.SIGKILL)
    with pytest.raises(RunError):
        first.fork()
    assert first.killed and not first.alive
    assert [answer.failure for answer in ask(pool, {"c0": {}})] == [None]
    assert pool._starter is not first


def test_large_payloads_in_both_directions(start: Any) -> None:
    import torch

    pool = start(2)
    block = torch.arange(2_000_000, dtype=torch.float32)
    answers = ask(pool, {f"c{k}": {"payload": block + k} for k in range(6)})
    for k, answer in enumerate(answers):
        assert torch.equal(decode(answer.frame).tensor("payload"), block + k)


def test_a_failed_setup_is_reported(start: Any) -> None:
    pool = start(1, description={"broken": True})
    with pytest.raises(RunError, match="ValueError: no such thing"):
        ask(pool, {"c0": {}})


FORKING = """
import os, time
from polyfed.engines.fork_server import ForkServer
server = ForkServer()
workers = [server.fork() for _ in range(2)]
print(server._process.pid, *(pid for pid, _ in workers), flush=True)
time.sleep(1000)
"""


def test_workers_end_with_a_killed_main_process() -> None:
    """Neither the fork server nor its workers outlive `kill -9` of the main process."""
    with subprocess.Popen([sys.executable, "-c", FORKING], stdout=subprocess.PIPE, text=True) as main:
        assert main.stdout is not None
        pids = [int(pid) for pid in main.stdout.readline().split()]
        assert len(pids) == 3 and all(is_running(pid) for pid in pids)
        main.kill()
    deadline = time.monotonic() + 400
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < deadline, "processes of a killed run are still there"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
