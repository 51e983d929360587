"""Assignment of tasks to workers, and answers in task order. Used by engines with several workers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from polyfed.core.engine import Answer, Call, Failure, Task

BUFFER_LIMIT = 64 << 20  # bytes of answers out of order; beyond this, only the next task in order may run
MAX_DEATHS = 3  # a task during which this many workers died fails


class WorkerAffinity:
    """Which worker last had each client, and how long each kind of call took there."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._worker: dict[str, int] = {}
        self._seconds: dict[tuple[str, ...], dict[str, float]] = {}

    def worker_of(self, client: str, number: int) -> int:
        """Return the worker that last had a client. Distribute new clients by task number."""
        return self._worker.get(client, number % self._workers)

    def assign(self, client: str, worker: int) -> None:
        self._worker[client] = worker

    def seconds(self, call: Call, client: str) -> float:
        """Return how long a call of this kind last took at a client, or 0 if it never ran there."""
        return self._seconds.get(call.steps or call.measures, {}).get(client, 0.0)

    def record(self, call: Call, answer: Answer) -> None:
        self._seconds.setdefault(call.steps or call.measures, {})[answer.client] = answer.seconds


class CallScheduler:
    """Tasks of one call: one queue per worker, and a buffer of answers that wait for earlier ones."""

    def __init__(self, call: Call, tasks: Sequence[Task], affinity: WorkerAffinity, workers: int) -> None:
        self.call = call
        self.tasks = tasks
        self._affinity = affinity
        self._queues: list[deque[int]] = [deque() for _ in range(workers)]
        self._answers: dict[int, Answer] = {}
        self._buffered = 0  # bytes of the answers in the buffer
        self._deaths: dict[int, int] = {}
        self._next = 0
        # long tasks first, so that all workers finish at about the same time
        for number in sorted(range(len(tasks)), key=lambda n: -affinity.seconds(call, tasks[n].client)):
            self._queues[affinity.worker_of(tasks[number].client, number)].append(number)

    @property
    def finished(self) -> bool:
        return self._next >= len(self.tasks)

    @property
    def waiting(self) -> bool:
        """Whether the next answer in task order is still missing."""
        return not self.finished and self._next not in self._answers

    def next_task(self, worker: int, idle: bool) -> int | None:
        """Return the next task for a worker: its own longest one or, if it is idle, one from the longest queue."""
        own = self._queues[worker]
        if not own and not idle:
            return None
        if self._buffered > BUFFER_LIMIT:
            return self._next_in_order() if idle else None
        if own:
            return own.popleft()
        longest = max(self._queues, key=len)
        return longest.pop() if longest else None

    def _next_in_order(self) -> int | None:
        """Return the task whose answer is next in order, from any queue."""
        for queue in self._queues:
            if self._next in queue:
                queue.remove(self._next)
                return self._next
        return None

    def put_back(self, worker: int, numbers: Sequence[int]) -> None:
        """Return tasks that were not run to the front of a worker's queue."""
        self._queues[worker].extendleft(reversed(numbers))

    def worker_died(self, worker: int, numbers: Sequence[int]) -> None:
        """Queue a dead worker's tasks again. The running one, which comes first, fails after too many deaths."""
        running, *others = numbers
        self._deaths[running] = self._deaths.get(running, 0) + 1
        if self._deaths[running] < MAX_DEATHS:
            others.insert(0, running)
        else:
            self.fail(running, Failure("died", f"its worker process died {MAX_DEATHS} times while it ran"))
        self.put_back(worker, others)

    def timed_out(self, worker: int, numbers: Sequence[int], timeout: float) -> None:
        """Fail a worker's running task, which comes first, and queue its other tasks again."""
        self.fail(numbers[0], Failure("timeout", f"no answer within {timeout:g} seconds"))
        self.put_back(worker, numbers[1:])

    def complete(self, number: int, answer: Answer) -> None:
        self._answers[number] = answer
        self._buffered += len(answer.frame)
        self._affinity.record(self.call, answer)

    def fail(self, number: int, failure: Failure) -> None:
        self._answers[number] = Answer(self.tasks[number].client, failure=failure)

    def ready_answers(self) -> Iterator[Answer]:
        """Yield the answers that are next in task order."""
        while self._next in self._answers:
            answer = self._answers.pop(self._next)
            self._buffered -= len(answer.frame)
            self._next += 1
            yield answer
