"""For simulations beyond one machine: clients live in Ray actors, one actor per share of CPUs, many clients in each.

A client goes back to the actor that last held it. An actor hands a client's new state over with the answer; it is
written here, on the driver's disk, before the answer counts. So an actor or a node that dies loses nothing: its tasks
name the state to start from, which goes along with them to whoever takes them over.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from polyfed.core.engine import INITIAL, Answer, Call, Failure, StateStore, Task
from polyfed.engines import framing
from polyfed.engines.ray_actor import Actor, Block, block_of, bytes_of
from polyfed.engines.ray_cluster import Cluster
from polyfed.engines.scheduler import DEATHS, CallScheduler, WorkerAffinity
from polyfed.errors import RunError, StateError

BATCH_SECONDS = 0.05  # tasks that take less go out together, so that sending them does not cost more than they do
GUESS = 0.01  # seconds a task takes, before anything is known of it
BATCH_BYTES = 8 << 20  # messages and states that go out with one batch
PATIENCE = 300.0  # seconds to wait for the first worker; a cluster may have to grow


@dataclass
class _Batch:
    numbers: list[int]
    seconds: float  # it will take, by what is known of its tasks
    reference: Any = None  # to what will be answered


@dataclass
class _Worker:
    index: int
    actor: Any
    starting: Any  # a reference to what its set-up says, until it has said it
    running: deque[_Batch] = field(default_factory=deque)  # the first is being worked on
    since: float = field(default_factory=time.monotonic)

    @property
    def numbers(self) -> list[int]:
        return [number for batch in self.running for number in batch.numbers]


class RayEngine:
    """Runs tasks on the actors of a cluster."""

    concurrent = True

    def __init__(
        self,
        cluster: Cluster,
        maker: str,
        description: Mapping[str, Any],
        files: Sequence[bytes],
        store: StateStore,
        workers: int,
        *,
        timeout: float | None = None,
    ) -> None:
        self.ray = cluster.ray
        self.store = store
        self.timeout = timeout
        self.homes = WorkerAffinity(workers)
        self.held: dict[str, tuple[Any, int]] = {}  # the actor that holds a client, and in which state
        self._cluster = cluster
        # put once: actors that are started later, in the place of others, find it there
        self._first = (maker, json.dumps(description).encode(), self.ray.put([block_of(file) for file in files]))
        self._lost_starts = 0
        self._open = True
        self.workers = [self._start(index) for index in range(workers)]

    def call(self, call: Call, shared: bytes, tasks: Sequence[Task]) -> Iterator[Answer]:
        return _Round(self, call, shared, tasks).answers()

    def peak_memory(self) -> int:
        """Of the actors that answer."""
        asked = [worker.actor.peak.remote() for worker in self.workers if worker.starting is None]
        total = 0
        for reference in asked:
            try:
                total += int(self.ray.get(reference))
            except self.ray.exceptions.RayError:
                continue
        return total

    def close(self) -> None:
        self.stop()
        self._cluster.close()

    # workers

    def stop(self) -> None:
        """End all actors at once: their states are whole, and they are needed no more."""
        self._open = False
        for worker in self.workers:
            worker.running.clear()
            if self.ray.is_initialized():
                self.ray.kill(worker.actor)

    def _start(self, index: int) -> _Worker:
        actor = self._cluster.start(Actor)
        return _Worker(index, actor, actor.set_up.remote(*self._first))

    def replace(self, worker: _Worker) -> None:
        """A new actor in the place of one that is gone or must go."""
        if not self._open:
            raise RunError("the engine was stopped while a call was under way")
        self.ray.kill(worker.actor)
        self.workers[worker.index] = self._start(worker.index)

    def started(self, worker: _Worker) -> None:
        """Take note of how the set-up of an actor went."""
        try:
            broken = self.ray.get(worker.starting)
        except self.ray.exceptions.RayError as error:
            self._lost_starts += 1
            if self._lost_starts >= DEATHS:
                raise RunError(f"Ray could not start a worker: {_first_line(error)}") from None
            self.replace(worker)
            return
        if broken:
            raise RunError(f"a worker could not be set up: {broken}")
        worker.starting, worker.since, self._lost_starts = None, time.monotonic(), 0


class _Round:
    """One call in progress."""

    def __init__(self, engine: RayEngine, call: Call, shared: bytes, tasks: Sequence[Task]) -> None:
        self._engine = engine
        self._ray = engine.ray
        self._call = call
        self._shared = shared
        self._tasks = tasks
        self._turns = CallScheduler(call, tasks, engine.homes, len(engine.workers))
        self._suspects: set[int] = set()  # one of them killed an actor: they go out alone

    def answers(self) -> Iterator[Answer]:
        """Answers in the order of the tasks."""
        turns = self._turns
        payload = self._ray.put(block_of(self._shared)) if self._tasks else None
        try:
            while not turns.finished:
                for worker in list(self._engine.workers):
                    while worker.starting is None and len(worker.running) < 2 and (batch := self._batch(worker)):
                        self._send(worker, batch, payload)
                if turns.stuck:
                    self._collect()
                yield from turns.in_order()
        except KeyboardInterrupt:
            self._engine.stop()
            raise
        finally:
            self._drain()

    # out

    def _batch(self, worker: _Worker) -> _Batch | None:
        """Tasks for a worker that, with those it has, take little time: what it has nobody else can take over.

        With a deadline it is one task, so that it is known which is late.
        """
        numbers: list[int] = []
        before = sum(batch.seconds for batch in worker.running)
        seconds, size, alone = 0.0, 0, self._engine.timeout is not None
        while not (numbers and (alone or before + seconds > BATCH_SECONDS or size > BATCH_BYTES)):
            number = self._turns.pick(worker.index, idle=not worker.running and not numbers)
            if number is None:
                break
            if number in self._suspects:
                if numbers:
                    self._turns.put_back(worker.index, [number])
                    break
                alone = True
            task = self._tasks[number]
            seconds += self._engine.homes.cost(self._call, task.client) or GUESS
            size += len(task.own)
            numbers.append(number)
        return _Batch(numbers, seconds) if numbers else None

    def _send(self, worker: _Worker, batch: _Batch, payload: Any) -> None:
        told: list[dict[str, Any]] = []
        blocks: list[Block] = []
        sent: list[int] = []
        for number in batch.numbers:
            task = self._tasks[number]
            state = b""
            if task.base != INITIAL and self._engine.held.get(task.client) != (worker.actor, task.base):
                try:
                    state = self._engine.store.read(task.client, task.base)
                except StateError as error:
                    self._turns.failed(number, Failure("storage", str(error)))
                    continue
            self._engine.homes.settle(task.client, worker.index)
            told.append({**framing.task_to_json(task), "own": bool(task.own), "state": bool(state)})
            blocks += [block_of(block) for block in (task.own, state) if block]
            sent.append(number)
        if not sent:
            return
        head = json.dumps({"call": framing.call_to_json(self._call), "tasks": told}).encode()
        if not worker.running:
            worker.since = time.monotonic()
        batch.numbers, batch.reference = sent, worker.actor.work.remote(head, payload, blocks)
        worker.running.append(batch)

    # back

    def _collect(self) -> None:
        """Wait for an answer, a start, a death or a deadline."""
        timeout = self._engine.timeout
        waited = {
            worker.starting or worker.running[0].reference: worker
            for worker in self._engine.workers
            if worker.starting is not None or worker.running
        }
        if not waited:
            return  # what was to be sent could not be read; its failures are there
        busy = [worker for worker in waited.values() if worker.running]
        until = None
        if not busy:
            until = max(worker.since for worker in waited.values()) + PATIENCE
        elif timeout:
            until = min(worker.since for worker in busy) + timeout
        patience = None if until is None else max(0.0, until - time.monotonic())
        for reference in self._ray.wait(list(waited), timeout=patience)[0]:
            worker = waited[reference]
            if worker.starting is not None:
                self._engine.started(worker)
            else:
                self._receive(worker)
        if not busy and patience == 0.0 and all(worker.starting is not None for worker in self._engine.workers):
            raise RunError(f"no worker of the Ray cluster could be started within {PATIENCE:g} seconds")
        for worker in busy:
            if timeout and worker.running and time.monotonic() - worker.since >= timeout:
                self._engine.replace(worker)
                self._turns.late(worker.index, worker.numbers, timeout)

    def _receive(self, worker: _Worker) -> None:
        """The answers to a worker's first batch, or its death."""
        batch = worker.running[0]
        try:
            head, *blocks = self._ray.get(batch.reference)
        except self._ray.exceptions.RayTaskError as error:
            raise RunError(f"a Ray worker failed: {_first_line(error)}") from None
        except self._ray.exceptions.RayError:  # its process, its node, or what it had answered is gone
            self._lost(worker)
            return
        worker.running.popleft()
        worker.since = time.monotonic()
        came = iter(blocks)
        for number, said in zip(batch.numbers, json.loads(head), strict=True):
            if "missing" in said:
                self._engine.held.pop(self._tasks[number].client, None)
                self._turns.put_back(worker.index, [number])
                continue
            answer = framing.answer_from_json(said["answer"], bytes_of(next(came)))
            state = next(came) if said["state"] else None
            self._turns.answered(number, answer if state is None else self._commit(worker, number, answer, state))

    def _commit(self, worker: _Worker, number: int, answer: Answer, state: Block) -> Answer:
        """Keep the client's new state; only then its answer counts."""
        task, store = self._tasks[number], self._engine.store
        try:
            store.write(task.client, self._call.number, bytes_of(state))
            if task.discard:
                store.discard(task.client, task.discard)
        except StateError as error:
            return Answer(task.client, failure=Failure("storage", str(error)))
        self._engine.held[task.client] = (worker.actor, self._call.number)
        return answer

    def _lost(self, worker: _Worker) -> None:
        """An actor died: its tasks are given out again, those that may have killed it one at a time."""
        self._engine.replace(worker)
        first = worker.running[0].numbers
        if len(first) > 1:
            self._suspects.update(first)
            self._turns.put_back(worker.index, worker.numbers)
        else:
            self._turns.lost(worker.index, worker.numbers)

    def _drain(self) -> None:
        """Leave no task behind when a caller stops listening in the middle of a call."""
        for worker in list(self._engine.workers):
            references = [batch.reference for batch in worker.running]
            worker.running.clear()
            if (
                references
                and self._ray.wait(references, num_returns=len(references), timeout=self._engine.timeout)[1]
            ):
                self._engine.replace(worker)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[-1].strip() if lines else 'no more is known'}"
