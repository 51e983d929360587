"""One call of the Ray engine: it sends batches of tasks to actors and collects their answers."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from polyfed import profiling
from polyfed.core.engine import INITIAL, Answer, Call, Failure, Task
from polyfed.engines import framing
from polyfed.engines.ray_actor import Block, block_of, bytes_of
from polyfed.engines.scheduler import CallScheduler
from polyfed.errors import RunError, StateError

if TYPE_CHECKING:
    from polyfed.engines.ray_engine import RayEngine

BATCH_SECONDS = 0.05  # shorter tasks are sent in one batch, to save overhead
DEFAULT_SECONDS = 0.01  # assumed duration of a task that never ran
BATCH_BYTES = 8 << 20  # messages and states in one batch
START_TIMEOUT = 300.0  # seconds to wait for the first worker; a cluster may have to grow


@dataclass
class _Batch:
    """Tasks that are sent to an actor together."""

    numbers: list[int]
    seconds: float  # expected duration
    reference: Any = None  # Ray's reference to the answers


@dataclass
class Worker:
    """An actor and its batches."""

    index: int
    actor: Any
    starting: Any  # Ray's reference to the result of the set-up; None: set up
    running: deque[_Batch] = field(default_factory=deque)  # the first one is running
    since: float = field(default_factory=time.monotonic)

    @property
    def numbers(self) -> list[int]:
        return [number for batch in self.running for number in batch.numbers]


class RayCall:
    """One call in progress."""

    def __init__(self, engine: RayEngine, call: Call, shared: bytes, tasks: Sequence[Task]) -> None:
        self._engine = engine
        self._ray = engine.ray
        self._call = call
        self._shared = shared
        self._tasks = tasks
        self._recorder = profiling.current()
        self._scheduler = CallScheduler(call, tasks, engine.affinity, len(engine.workers))
        self._suspects: set[int] = set()  # tasks of a batch during which an actor died; they are sent alone

    def answers(self) -> Iterator[Answer]:
        """Yield answers in task order."""
        scheduler = self._scheduler
        payload = self._ray.put(block_of(self._shared)) if self._tasks else None
        try:
            while not scheduler.finished:
                for worker in list(self._engine.workers):
                    while worker.starting is None and len(worker.running) < 2 and (batch := self._batch(worker)):
                        self._send(worker, batch, payload)
                if scheduler.waiting:
                    self._collect()
                yield from scheduler.ready_answers()
        except KeyboardInterrupt:
            self._engine.stop()
            raise
        finally:
            self._drain()

    # sending

    def _batch(self, worker: Worker) -> _Batch | None:
        """Return short tasks for a worker as one batch.

        Batches stay small, because other workers cannot take over their tasks. With a timeout, a batch is one task,
        so that the late one is known.
        """
        numbers: list[int] = []
        before = sum(batch.seconds for batch in worker.running)
        seconds, size, alone = 0.0, 0, self._engine.timeout is not None
        while not (numbers and (alone or before + seconds > BATCH_SECONDS or size > BATCH_BYTES)):
            number = self._scheduler.next_task(worker.index, idle=not worker.running and not numbers)
            if number is None:
                break
            if number in self._suspects:
                if numbers:
                    self._scheduler.put_back(worker.index, [number])
                    break
                alone = True
            task = self._tasks[number]
            seconds += self._engine.affinity.seconds(self._call, task.client) or DEFAULT_SECONDS
            size += len(task.own)
            numbers.append(number)
        return _Batch(numbers, seconds) if numbers else None

    def _send(self, worker: Worker, batch: _Batch, payload: Any) -> None:
        entries: list[dict[str, Any]] = []
        blocks: list[Block] = []
        sent: list[int] = []
        for number in batch.numbers:
            task = self._tasks[number]
            state = b""
            if task.base != INITIAL and self._engine.held.get(task.client) != (worker.actor, task.base):
                try:
                    state = self._engine.store.read(task.client, task.base)
                except StateError as error:
                    self._scheduler.fail(number, Failure("storage", str(error)))
                    continue
            self._engine.affinity.assign(task.client, worker.index)
            entries.append({**framing.task_to_json(task), "own": bool(task.own), "state": bool(state)})
            blocks += [block_of(block) for block in (task.own, state) if block]
            sent.append(number)
        if not sent:
            return
        head = json.dumps({"call": framing.call_to_json(self._call), "tasks": entries}).encode()
        if not worker.running:
            worker.since = time.monotonic()
        batch.numbers, batch.reference = sent, worker.actor.work.remote(head, payload, blocks)
        worker.running.append(batch)

    # receiving

    def _collect(self) -> None:
        """Wait for an answer, a started actor, the death of an actor or a timeout."""
        timeout = self._engine.timeout
        waited = {
            worker.starting or worker.running[0].reference: worker
            for worker in self._engine.workers
            if worker.starting is not None or worker.running
        }
        if not waited:
            return  # no task could be sent; their failures are recorded
        busy = [worker for worker in waited.values() if worker.running]
        until = None
        if not busy:
            until = max(worker.since for worker in waited.values()) + START_TIMEOUT
        elif timeout:
            until = min(worker.since for worker in busy) + timeout
        wait_seconds = None if until is None else max(0.0, until - time.monotonic())
        with profiling.span("wait", "wait for workers"):
            references = self._ray.wait(list(waited), timeout=wait_seconds)[0]
        for reference in references:
            worker = waited[reference]
            if worker.starting is not None:
                self._engine.finish_start(worker)
            else:
                self._receive(worker)
        if not busy and wait_seconds == 0.0 and all(worker.starting is not None for worker in self._engine.workers):
            raise RunError(f"no worker of the Ray cluster could be started within {START_TIMEOUT:g} seconds")
        for worker in busy:
            if timeout and worker.running and time.monotonic() - worker.since >= timeout:
                self._engine.replace(worker)
                self._scheduler.timed_out(worker.index, worker.numbers, timeout)

    def _receive(self, worker: Worker) -> None:
        """Read the answers to a worker's first batch. Replace the worker if it died."""
        batch = worker.running[0]
        try:
            head, *blocks = self._ray.get(batch.reference)
        except self._ray.exceptions.RayTaskError as error:
            raise RunError(f"a Ray worker failed: {error_summary(error)}") from None
        except self._ray.exceptions.RayError:  # its process, its node or its answer is gone
            self._worker_died(worker)
            return
        worker.running.popleft()
        worker.since = time.monotonic()
        received = iter(blocks)
        for number, entry in zip(batch.numbers, json.loads(head), strict=True):
            if self._recorder is not None and "profile" in entry:
                now = time.perf_counter()  # nodes have clocks of their own
                self._recorder.add_worker_times(worker.index, entry["profile"], call=self._call.number, end=now)
            if "missing" in entry:
                self._engine.held.pop(self._tasks[number].client, None)
                self._scheduler.put_back(worker.index, [number])
                continue
            answer = framing.answer_from_json(entry["answer"], bytes_of(next(received)))
            state = next(received) if entry["state"] else None
            self._scheduler.complete(number, answer if state is None else self._commit(worker, number, answer, state))

    def _commit(self, worker: Worker, number: int, answer: Answer, state: Block) -> Answer:
        """Store the client's new state before its answer is accepted."""
        task, store = self._tasks[number], self._engine.store
        try:
            store.write(task.client, self._call.number, [bytes_of(state)], task.discard)
        except StateError as error:
            return Answer(task.client, failure=Failure("storage", str(error)))
        self._engine.held[task.client] = (worker.actor, self._call.number)
        return answer

    def _worker_died(self, worker: Worker) -> None:
        """Replace an actor that died and queue its tasks again. Tasks of its running batch are then sent alone."""
        self._engine.replace(worker)
        first = worker.running[0].numbers
        if len(first) > 1:
            self._suspects.update(first)
            self._scheduler.put_back(worker.index, worker.numbers)
        else:
            self._scheduler.worker_died(worker.index, worker.numbers)

    def _drain(self) -> None:
        """Wait for the remaining tasks if the caller stops in the middle of a call."""
        for worker in list(self._engine.workers):
            references = [batch.reference for batch in worker.running]
            worker.running.clear()
            if (
                references
                and self._ray.wait(references, num_returns=len(references), timeout=self._engine.timeout)[1]
            ):
                self._engine.replace(worker)


def error_summary(error: Exception) -> str:
    """Return the type of an error and the last line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[-1].strip() if lines else 'no details'}"
