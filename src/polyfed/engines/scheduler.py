"""Assignment of tasks to workers, and answers in task order. Used by engines with several workers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

from polyfed.core.engine import Answer, Call, Failure, Task
from polyfed.engines.balancing import TOLERANCE, balance

BUFFER_LIMIT = 64 << 20  # bytes of answers out of order; beyond this, only the next task in order may run
LAST = 3  # tasks per worker that are left when queues are balanced again after every answer
MOVE_SECONDS = 0.003  # smallest difference between workers for which a client moves during a call
SHORT = 0.02  # seconds of work that stays with its worker, because loading a client elsewhere takes as long
MAX_DEATHS = 3  # a task during which this many workers died fails


class WorkerAffinity:
    """Which worker last had each client, and how long each kind of call took there."""

    def __init__(self, costs: Mapping[str, float] | None = None) -> None:
        """`costs` are relative costs by client, which order clients before their first call is measured."""
        self._costs = costs or {}
        self._worker: dict[str, int] = {}
        self._seconds: dict[tuple[str, ...], dict[str, float]] = {}
        self._last_round: dict[tuple[str, ...], int] = {}  # in which each kind of call was answered
        self._moved: set[str] = set()  # clients whose next answer includes the time to load them

    def worker_of(self, client: str) -> int | None:
        """Return the worker that last had a client, or None for a new client."""
        return self._worker.get(client)

    def assign(self, client: str, worker: int) -> None:
        if self._worker.get(client) != worker:
            self._moved.add(client)
        self._worker[client] = worker

    def seconds(self, call: Call, client: str) -> float:
        """Return how long a call of this kind takes at a client, as measured, or 0 if it never ran there."""
        return self._seconds.get(call.steps or call.measures, {}).get(client, 0.0)

    def expected_seconds(self, call: Call, clients: Sequence[str]) -> list[float]:
        """Return how long a call will probably take at clients, as measured before or estimated from their costs.

        The costs are scaled by the clients of this call that were measured before. If there are none, only the order
        of the numbers has a meaning.
        """
        measured = self._seconds.get(call.steps or call.measures, {})
        known = [client for client in clients if client in measured]
        cost = sum(self._costs.get(client, 0.0) for client in known)
        rate = sum(measured[client] for client in known) / cost if cost else 1.0
        return [measured.get(client, self._costs.get(client, 0.0) * rate) for client in clients]

    def is_longest(self, call: Call, clients: Sequence[str]) -> bool:
        """Return whether no other kind of call takes longer at these clients. False if this kind was not measured."""
        work = {
            kind: sum(times.get(client, 0.0) for client in clients)
            for kind, times in self._seconds.items()
            if self._last_round[kind] >= call.round - 1  # others may never run again
        }
        own = work.get(call.steps or call.measures, 0.0)
        return own > 0 and own == max(work.values())

    def record(self, call: Call, answer: Answer) -> None:
        """Record how long a call took at a client, as a moving average. Failures are ignored."""
        kind, client = call.steps or call.measures, answer.client
        if answer.failure is not None:
            self._moved.add(client)  # its worker has dropped it
            return
        times, self._last_round[kind] = self._seconds.setdefault(kind, {}), call.round
        seconds = answer.seconds + answer.evaluation_seconds
        before = times.get(client, seconds)
        if client in self._moved:  # it had to be loaded, so it is at least as fast as this
            times[client] = min(before, seconds)
        else:
            times[client] = (before + seconds) / 2
        self._moved.discard(client)


class CallScheduler:
    """Tasks of one call: one queue per worker, and a buffer of answers that wait for earlier ones."""

    def __init__(
        self,
        call: Call,
        tasks: Sequence[Task],
        affinity: WorkerAffinity,
        workers: int,
        *,
        moves_are_cheap: bool = False,
    ) -> None:
        """With `moves_are_cheap`, clients change their worker so that all workers finish at about the same time.

        Queues are balanced before the longest call of a round, and its last tasks again after every answer (see
        `rebalance`). In other calls, clients stay where they are. A busy worker gets none of the last tasks, one for
        each worker, unless they are short: whoever is idle first takes them. Short work stays with its worker. All
        workers must be there: another engine's worker may take minutes to start.
        """
        self.call = call
        self.tasks = tasks
        self._moves_are_cheap = moves_are_cheap
        self._affinity = affinity
        self._answers: dict[int, Answer] = {}
        self._buffered = 0  # bytes of the answers in the buffer
        self._deaths: dict[int, int] = {}
        self._next = 0
        self._measured = all(affinity.seconds(call, task.client) for task in tasks)
        self._expected = affinity.expected_seconds(call, [task.client for task in tasks])
        # long tasks first, so that all workers finish at about the same time; new clients go to the worker with the
        # least work
        queues: list[list[int]] = [[] for _ in range(workers)]
        for number in sorted(range(len(tasks)), key=lambda n: -self._expected[n]):
            worker = affinity.worker_of(tasks[number].client)
            queue = min(queues, key=self._work) if worker is None else queues[worker]
            queue.append(number)
        self._balances = moves_are_cheap and affinity.is_longest(call, [task.client for task in tasks])
        if self._balances:
            balance(queues, self._expected)
        self._allowed = max(MOVE_SECONDS, TOLERANCE * sum(self._expected) / workers)
        self._queues = [deque(self._in_order(queue)) for queue in queues]

    def _in_order(self, queue: Iterable[int]) -> list[int]:
        """Return tasks in the order in which they run: long ones first.

        If the last tasks are balanced again, they are a long, a middling and a short one, because tasks of the same
        length cannot make up for a small difference between workers.
        """
        order = sorted(queue, key=lambda n: -self._expected[n])
        if not self._balances or len(order) <= LAST:
            return order
        last = [order[0], order[len(order) // 2], order[-1]]
        return [number for number in order if number not in last] + last

    def _work(self, queue: Sequence[int]) -> tuple[float, int]:
        """Return the expected seconds and the number of the tasks in a queue."""
        return sum(self._expected[number] for number in queue), len(queue)

    @property
    def finished(self) -> bool:
        return self._next >= len(self.tasks)

    @property
    def waiting(self) -> bool:
        """Whether the next answer in task order is still missing."""
        return not self.finished and self._next not in self._answers

    def rebalance(self, running: Sequence[tuple[Sequence[int], float]]) -> None:
        """Balance the last tasks of a call, because workers were faster or slower than expected.

        `running` has the tasks that each worker has already got, and for how many seconds it has run the first one.
        """
        left = sum(map(len, self._queues))
        if not self._balances or not self._measured or not 0 < left <= LAST * len(self._queues):
            return
        started = [max(0.0, sum(self._expected[n] for n in numbers) - elapsed) for numbers, elapsed in running]
        balance(self._queues, self._expected, started, self._allowed)
        self._queues = [deque(self._in_order(queue)) for queue in self._queues]

    def next_task(self, worker: int, idle: bool) -> int | None:
        """Return the longest task in a worker's queue. If the queue is empty and the worker is idle, return the
        longest task of the queue with the most work."""
        own = self._queues[worker]
        if not idle and (not own or (self._moves_are_cheap and self._is_one_of_the_last(own[0]))):
            return None
        if self._buffered > BUFFER_LIMIT:
            return self._next_in_order() if idle else None
        if own:
            return own.popleft()
        fullest = max(self._queues, key=self._work)
        if self._moves_are_cheap and self._measured and self._work(fullest)[0] < SHORT:
            return None  # waiting for its worker costs less than loading the client elsewhere
        return fullest.popleft() if fullest else None

    def _is_one_of_the_last(self, number: int) -> bool:
        """Whether a task is not short and no more tasks are left than there are workers."""
        return self._expected[number] >= SHORT and sum(map(len, self._queues)) <= len(self._queues)

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
