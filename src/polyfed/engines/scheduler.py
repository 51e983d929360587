"""Who does which task next, and answers in their order: what engines with several workers have in common."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from polyfed.core.engine import Answer, Call, Failure, Task

WAITING = 64 << 20  # answers that wait for their turn may weigh this much before tasks are run in strict order
DEATHS = 3  # a task that took so many workers with it is given up


class WorkerAffinity:
    """Which worker holds a client, and how long each kind of call took it last."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._home: dict[str, int] = {}
        self._seconds: dict[tuple[str, ...], dict[str, float]] = {}

    def of(self, client: str, turn: int) -> int:
        """The worker that holds a client; a new client goes to the next worker in turn."""
        return self._home.get(client, turn % self._workers)

    def settle(self, client: str, worker: int) -> None:
        self._home[client] = worker

    def cost(self, call: Call, client: str) -> float:
        """Seconds that a client needed for such a call; 0 when it never ran one."""
        return self._seconds.get(call.steps or call.measures, {}).get(client, 0.0)

    def learn(self, call: Call, answer: Answer) -> None:
        self._seconds.setdefault(call.steps or call.measures, {})[answer.client] = answer.seconds


class CallScheduler:
    """The tasks of one call: a queue for every worker, and the answers that wait for those before them."""

    def __init__(self, call: Call, tasks: Sequence[Task], homes: WorkerAffinity, workers: int) -> None:
        self.call = call
        self.tasks = tasks
        self._homes = homes
        self._queues: list[deque[int]] = [deque() for _ in range(workers)]
        self._done: dict[int, Answer] = {}
        self._waiting = 0  # bytes of the answers in `_done`
        self._deaths: dict[int, int] = {}
        self._next = 0
        # long tasks first, so that the workers end together
        for number in sorted(range(len(tasks)), key=lambda n: -homes.cost(call, tasks[n].client)):
            self._queues[homes.of(tasks[number].client, number)].append(number)

    @property
    def finished(self) -> bool:
        return self._next >= len(self.tasks)

    @property
    def stuck(self) -> bool:
        """Whether the answer whose turn it is has not come yet."""
        return not self.finished and self._next not in self._done

    def pick(self, worker: int, idle: bool) -> int | None:
        """The next task for a worker: its own longest, or the shortest of the fullest queue when it would be idle."""
        own = self._queues[worker]
        if not own and not idle:
            return None
        if self._waiting > WAITING:
            return self._pick_next() if idle else None
        if own:
            return own.popleft()
        fullest = max(self._queues, key=len)
        return fullest.pop() if fullest else None

    def _pick_next(self) -> int | None:
        """Too much waits for its turn: only the task whose turn it is may run, on whichever worker is free."""
        for queue in self._queues:
            if self._next in queue:
                queue.remove(self._next)
                return self._next
        return None

    def put_back(self, worker: int, numbers: Sequence[int]) -> None:
        """Tasks that were picked and not done, to the front of a worker's queue."""
        self._queues[worker].extendleft(reversed(numbers))

    def lost(self, worker: int, numbers: Sequence[int]) -> None:
        """A worker died: its tasks go to its successor, unless the running one keeps killing workers."""
        running, *others = numbers
        self._deaths[running] = self._deaths.get(running, 0) + 1
        if self._deaths[running] < DEATHS:
            others.insert(0, running)
        else:
            self.failed(running, Failure("died", f"its worker process died {DEATHS} times while it ran"))
        self.put_back(worker, others)

    def late(self, worker: int, numbers: Sequence[int], timeout: float) -> None:
        """A worker's running task took too long; the others it had are given out again."""
        self.failed(numbers[0], Failure("timeout", f"no answer within {timeout:g} seconds"))
        self.put_back(worker, numbers[1:])

    def answered(self, number: int, answer: Answer) -> None:
        self._done[number] = answer
        self._waiting += len(answer.frame)
        self._homes.learn(self.call, answer)

    def failed(self, number: int, why: Failure) -> None:
        self._done[number] = Answer(self.tasks[number].client, failure=why)

    def in_order(self) -> Iterator[Answer]:
        """The answers whose turn has come."""
        while self._next in self._done:
            answer = self._done.pop(self._next)
            self._waiting -= len(answer.frame)
            self._next += 1
            yield answer
