"""The default on one machine: worker processes with one torch thread each, in which clients stay.

A client goes back to the worker that last held it, so its model does not travel. A worker that has nothing left to do
takes a client from the longest queue; that client's state then comes from the store. A worker that dies is replaced,
and the tasks it had are given out again: they name the state to start from, so nothing is done twice.
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
from typing import Any

from polyfed.core.engine import Answer, Call, Task
from polyfed.engines import framing, zygote
from polyfed.engines.scheduler import CallScheduler, WorkerAffinity
from polyfed.errors import RunError

PREFETCH = 64 << 10  # a message this small fits the socket's buffer, so it can wait there for a busy worker


@dataclass
class _Worker:
    index: int
    pid: int
    connection: Connection
    running: deque[int] = field(default_factory=deque)  # task numbers, the first is being worked on
    since: float = 0.0
    call: int | None = None  # the call whose shared payload it holds
    ready: bool = False  # whether it has built what it needs

    def receive(self) -> tuple[dict[str, Any], bytes] | None:
        """Its next message; None for the one that says it is ready."""
        head, block = framing.receive(self.connection)
        if "broken" in head:
            raise RunError(f"a worker could not be set up: {head['broken']}")
        if "ready" in head:
            self.ready, self.since = True, time.monotonic()
            return None
        return head, block

    def answer(self) -> tuple[dict[str, Any], bytes]:
        """Its next message that answers something."""
        while (message := self.receive()) is None:
            pass
        return message


class PoolEngine:
    """Runs tasks on worker processes."""

    concurrent = True

    def __init__(
        self, maker: str, description: Mapping[str, Any], workers: int, *, timeout: float | None = None
    ) -> None:
        self._first = {"maker": maker, "description": description}
        self._timeout = timeout
        self._zygote = zygote.take()
        self.homes = WorkerAffinity(workers)
        self._workers = [self._start(index) for index in range(workers)]

    @property
    def pids(self) -> list[int]:
        """The workers' process ids."""
        return [worker.pid for worker in self._workers]

    def call(self, call: Call, shared: bytes, tasks: Sequence[Task]) -> Iterator[Answer]:
        return _Round(self, call, shared, tasks, self._timeout).answers()

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
        zygote.give_back(self._zygote)

    # workers

    def _start(self, index: int) -> _Worker:
        if not self._zygote.alive:
            self._zygote.close()
            self._zygote = zygote.Zygote()
        pid, connection = self._zygote.fork()
        worker = _Worker(index, pid, connection)
        framing.send(connection, self._first)
        return worker

    def replace(self, worker: _Worker) -> None:
        """A new worker in the place of one that is gone or must go."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker.pid, signal.SIGKILL)
        worker.connection.close()
        self._workers[worker.index] = self._start(worker.index)

    def workers(self) -> list[_Worker]:
        return self._workers


class _Round:
    """One call in progress."""

    def __init__(
        self, pool: PoolEngine, call: Call, shared: bytes, tasks: Sequence[Task], timeout: float | None
    ) -> None:
        self._pool = pool
        self._call = call
        self._shared = shared
        self._tasks = tasks
        self._timeout = timeout
        self._turns = CallScheduler(call, tasks, pool.homes, len(pool.workers()))

    def answers(self) -> Iterator[Answer]:
        """Answers in the order of the tasks."""
        try:
            while not self._turns.finished:
                for worker in list(self._pool.workers()):
                    self._feed(worker)
                if self._turns.stuck:
                    self._collect()
                yield from self._turns.in_order()
        except KeyboardInterrupt:
            for worker in self._pool.workers():  # at once: their states are whole, and they are needed no more
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.pid, signal.SIGKILL)
                worker.running.clear()
            raise
        finally:
            self._drain()

    def _feed(self, worker: _Worker) -> None:
        """Give a worker its next task, and one more to wait in its socket if that is small."""
        while len(worker.running) < 2:
            number = self._turns.pick(worker.index, idle=not worker.running)
            if number is None:
                return
            task = self._tasks[number]
            if worker.running and (len(task.own) > PREFETCH or worker.call != self._call.number):
                self._turns.put_back(worker.index, [number])
                return
            self._pool.homes.settle(task.client, worker.index)
            if not worker.running:
                worker.since = time.monotonic()
            worker.running.append(number)
            try:
                if worker.call != self._call.number:
                    framing.send(
                        worker.connection, {"do": "call", "call": framing.call_to_json(self._call)}, self._shared
                    )
                    worker.call = self._call.number
                framing.send(worker.connection, {"do": "task", "task": framing.task_to_json(task)}, task.own)
            except OSError:
                self._lost(worker)
                return

    def _collect(self) -> None:
        """Wait for an answer, a death or a deadline."""
        busy = {worker.connection: worker for worker in self._pool.workers() if worker.running}
        if not busy:
            return  # whoever was fed died of it; their successors are fed next
        patience = None
        if self._timeout is not None:
            ready = [worker.since for worker in busy.values() if worker.ready]
            patience = max(0.0, min(ready) + self._timeout - time.monotonic()) if ready else None
        for connection in wait(list(busy), patience):
            worker = busy[connection]  # type: ignore[index]
            try:
                message = worker.receive()
            except (EOFError, OSError):
                self._lost(worker)
                continue
            if message is None:
                continue
            self._turns.answered(worker.running.popleft(), framing.answer_from_json(*message))
            worker.since = time.monotonic()
        if self._timeout is not None:
            for worker in list(busy.values()):
                if worker.ready and worker.running and time.monotonic() - worker.since >= self._timeout:
                    self._pool.replace(worker)
                    self._turns.late(worker.index, list(worker.running), self._timeout)

    def _lost(self, worker: _Worker) -> None:
        """A worker died: its successor gets its tasks."""
        self._pool.replace(worker)
        self._turns.lost(worker.index, list(worker.running))

    def _drain(self) -> None:
        """Leave no answer behind when a caller stops listening in the middle of a call."""
        for worker in list(self._pool.workers()):
            while worker.running:
                try:
                    worker.answer()
                except (EOFError, OSError):
                    self._pool.replace(worker)
                    break
                worker.running.popleft()
