"""The pool engine: worker processes with one torch thread each. It is the default on one machine.

A client runs on the worker that had it last, which still has its model in memory. An idle worker takes a client from
the longest queue and reads its state from the store. If a worker dies, it is replaced and its tasks are queued again.
Tasks name the state version that they start from, so repeating one is safe.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal

from polyfed import profiling
from polyfed.core.engine import Answer, Call, Task
from polyfed.core.memory_limits import is_out_of_memory
from polyfed.devices import DeviceChoice
from polyfed.engines import fork_server, framing
from polyfed.engines.fork_server import ForkServer
from polyfed.engines.scheduler import CallScheduler, WorkerAffinity
from polyfed.engines.spawned_workers import SpawnedWorkers
from polyfed.errors import RunError

PREFETCH = 64 << 10  # a message this small fits into the socket's buffer and can wait there for a busy worker


@dataclass
class _Worker:
    """A worker process and its connection."""

    index: int
    pid: int
    connection: Connection
    device: tuple[str, int] = ("cpu", 0)
    running: deque[int] = field(default_factory=deque)  # task numbers; the first one is running
    since: float = 0.0  # when the running task started
    call: int | None = None  # the call whose shared message the worker has
    ready: bool = False  # whether its host is set up

    def receive(self) -> tuple[dict[str, Any], bytes] | None:
        """Return the next message, or None if it only says that the worker is ready."""
        head, block = framing.receive(self.connection)
        if "broken" in head:
            raise RunError(f"a worker could not be set up: {head['broken']}")
        if "ready" in head:
            self.ready, self.since = True, time.monotonic()
            recorder = profiling.current()
            if recorder is not None and "profile" in head:
                recorder.add_worker_times(self.index, head["profile"])
            return None
        return head, block

    def answer(self) -> tuple[dict[str, Any], bytes]:
        """Return the next message that is an answer."""
        while (message := self.receive()) is None:
            pass
        return message


class PoolEngine:
    """Runs tasks in worker processes."""

    concurrent = True
    trusted = True

    def __init__(
        self,
        host_factory: str,
        description: Mapping[str, Any],
        workers: Sequence[DeviceChoice],
        *,
        timeout: float | None = None,
        costs: Mapping[str, float] | None = None,
        start: Literal["fork", "spawn"] = "fork",
    ) -> None:
        """Start one worker for every entry of `workers`, which names its device.

        `costs` are relative costs by client: the most expensive clients start first. `start` chooses between forks
        and new processes.
        """
        recorder = profiling.current()
        if recorder is not None:
            recorder.add_workers(len(workers))
        setup = {"host_factory": host_factory, "description": description, "directory": str(Path.cwd())}
        self._setup = {**setup, "profile": recorder is not None}
        self._devices, self._timeout = workers, timeout
        self.evaluates_after_steps = timeout is None  # a timeout is for the step alone
        self._starter: ForkServer | SpawnedWorkers = SpawnedWorkers() if start == "spawn" else fork_server.acquire()
        self.affinity = WorkerAffinity(costs)
        self._workers = [self._start(index) for index in range(len(workers))]

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [worker.pid for worker in self._workers]

    def call(self, call: Call, shared: bytes, tasks: Sequence[Task]) -> Iterator[Answer]:
        return _PoolCall(self, call, shared, tasks, self._timeout).answers()

    def peak_memory(self) -> int:
        total = 0
        for worker in self._workers:
            try:
                framing.send(worker.connection, {"do": "memory"})
                total += int(worker.answer()[0]["peak"])
            except (EOFError, OSError):
                continue
        return total

    def close(self) -> None:
        for worker in self._workers:
            worker.connection.close()
        self._workers = []  # a call that is closed later must not replace them
        fork_server.release(self._starter)

    def _start(self, index: int) -> _Worker:
        if isinstance(self._starter, SpawnedWorkers):
            pid, connection = self._starter.fork()
        else:
            self._starter, pid, connection = fork_server.fork_from(self._starter)
        device = self._devices[index]
        worker = _Worker(index, pid, connection, (device.kind, device.index))
        # variables are set in the worker: it is forked before it uses a device
        framing.send(connection, {**self._setup, "device": device.to_json(), "environment": device.environment()})
        return worker

    def replace(self, worker: _Worker) -> None:
        """Kill a worker, if it is still running, and start a new one in its place."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker.pid, signal.SIGKILL)
        worker.connection.close()
        self._workers[worker.index] = self._start(worker.index)

    def workers(self) -> list[_Worker]:
        return self._workers


class _PoolCall:
    """One call in progress."""

    def __init__(
        self, pool: PoolEngine, call: Call, shared: bytes, tasks: Sequence[Task], timeout: float | None
    ) -> None:
        self._pool = pool
        self._call = call
        self._shared = shared
        self._tasks = tasks
        self._timeout = timeout
        self._recorder = profiling.current()
        self._scheduler = CallScheduler(call, tasks, pool.affinity, len(pool.workers()), moves_are_cheap=True)
        # tasks that need a device for themselves, and the worker that has one for itself
        self._alone: dict[tuple[str, int], deque[int]] = {}
        self._exclusive: dict[tuple[str, int], int] = {}

    def answers(self) -> Iterator[Answer]:
        """Yield answers in task order."""
        try:
            while not self._scheduler.finished:
                workers, now = list(self._pool.workers()), time.monotonic()
                self._scheduler.rebalance([(worker.running, now - worker.since) for worker in workers])
                for worker in workers:
                    self._send_tasks(worker)
                if self._scheduler.waiting:
                    self._collect()
                yield from self._scheduler.ready_answers()
        except KeyboardInterrupt:
            # at once: stored states are complete, and the workers are no longer needed
            for worker in self._pool.workers():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.pid, signal.SIGKILL)
                worker.running.clear()
            raise
        finally:
            self._drain()

    def _send_tasks(self, worker: _Worker) -> None:
        """Send a worker its next task, and a second one if it is small enough to wait in the socket."""
        if self._alone.get(worker.device) or worker.device in self._exclusive:
            self._send_alone(worker)
            return
        alone = len(self._neighbours(worker)) == 1
        while len(worker.running) < 2:
            number = self._scheduler.next_task(worker.index, idle=not worker.running)
            if number is None:
                return
            task = self._tasks[number]
            if worker.running and (len(task.own) > PREFETCH or worker.call != self._call.number):
                self._scheduler.put_back(worker.index, [number])
                return
            if not self._send(worker, number, alone):
                return

    def _send_alone(self, worker: _Worker) -> None:
        """Send a task that needs a device for itself, once all workers of the device have finished theirs."""
        if worker.device in self._exclusive or any(neighbour.running for neighbour in self._neighbours(worker)):
            return
        for neighbour in self._neighbours(worker):
            try:
                framing.send(neighbour.connection, {"do": "free"})
            except OSError:
                self._pool.replace(neighbour)
                return  # the next turn finds its successor
        self._exclusive[worker.device] = worker.index
        self._send(worker, self._alone[worker.device].popleft(), alone=True)

    def _neighbours(self, worker: _Worker) -> list[_Worker]:
        """Return the workers of a worker's device, itself included."""
        return [other for other in self._pool.workers() if other.device == worker.device]

    def _send(self, worker: _Worker, number: int, alone: bool) -> bool:
        """Send a worker a task. Return False if the worker has died."""
        task = self._tasks[number]
        self._pool.affinity.assign(task.client, worker.index)
        if not worker.running:
            worker.since = time.monotonic()
        worker.running.append(number)
        head = {"do": "task", "task": framing.task_to_json(task), "alone": alone}
        try:
            if worker.call != self._call.number:
                framing.send(
                    worker.connection, {"do": "call", "call": framing.call_to_json(self._call)}, self._shared
                )
                worker.call = self._call.number
            framing.send(worker.connection, head, task.own)
        except OSError:
            self._worker_died(worker)
            return False
        return True

    def _finish(self, worker: _Worker, answer: Answer) -> None:
        """Record an answer. A task that ran out of memory is repeated alone on its device."""
        number = worker.running.popleft()
        self._release(worker)
        if is_out_of_memory(answer):
            self._alone.setdefault(worker.device, deque()).append(number)
        else:
            self._scheduler.complete(number, answer)

    def _release(self, worker: _Worker) -> None:
        """Let other workers use the device again, if this one had it for itself."""
        if self._exclusive.get(worker.device) == worker.index:
            del self._exclusive[worker.device]

    def _collect(self) -> None:
        """Wait for an answer, the death of a worker or a timeout."""
        busy = {worker.connection: worker for worker in self._pool.workers() if worker.running}
        if not busy:
            return  # the workers died while tasks were sent; their successors get tasks next
        wait_seconds = None
        if self._timeout is not None:
            ready = [worker.since for worker in busy.values() if worker.ready]
            wait_seconds = max(0.0, min(ready) + self._timeout - time.monotonic()) if ready else None
        with profiling.span("wait", "wait for workers"):
            connections = wait(list(busy), wait_seconds)
        for connection in connections:
            worker = busy[connection]  # type: ignore[index]
            try:
                message = worker.receive()
            except (EOFError, OSError):
                self._worker_died(worker)
                continue
            if message is None:
                continue
            if self._recorder is not None and "profile" in message[0]:
                self._recorder.add_worker_times(worker.index, message[0]["profile"], call=self._call.number)
            self._finish(worker, framing.answer_from_json(*message))
            worker.since = time.monotonic()
        if self._timeout is not None:
            for worker in list(busy.values()):
                if worker.ready and worker.running and time.monotonic() - worker.since >= self._timeout:
                    self._pool.replace(worker)
                    self._release(worker)
                    self._scheduler.timed_out(worker.index, list(worker.running), self._timeout)

    def _worker_died(self, worker: _Worker) -> None:
        """Replace a worker that died and queue its tasks again. Raise RunError if it could not be set up."""
        with contextlib.suppress(EOFError, OSError):
            while not worker.ready and worker.connection.poll():
                worker.receive()
        self._pool.replace(worker)
        self._release(worker)
        self._scheduler.worker_died(worker.index, list(worker.running))

    def _drain(self) -> None:
        """Read the remaining answers if the caller stops in the middle of a call."""
        for worker in list(self._pool.workers()):
            while worker.running:
                try:
                    worker.answer()
                except (EOFError, OSError):
                    self._pool.replace(worker)
                    break
                worker.running.popleft()
