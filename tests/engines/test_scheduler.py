"""The scheduler: every task is answered once and in order, whichever worker dies."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyfed.core.engine import Answer, Call, Failure, Task
from polyfed.engines.balancing import TOLERANCE, balance
from polyfed.engines.scheduler import BUFFER_LIMIT, MAX_DEATHS, CallScheduler, WorkerAffinity

CALL = Call(1, 1, ("train",), ("train",))


def tasks(count: int) -> list[Task]:
    return [Task(f"c{k}", 0) for k in range(count)]


@settings(max_examples=25, deadline=None)
@given(count=st.integers(0, 30), workers=st.integers(1, 4), seed=st.integers(0, 999), weight=st.integers(0, 2))
def test_every_task_is_answered_once_and_in_order(count: int, workers: int, seed: int, weight: int) -> None:
    draw = random.Random(seed)
    affinity = WorkerAffinity()
    for task in tasks(count):
        affinity.record(CALL, Answer(task.client, seconds=draw.random()))
        affinity.assign(task.client, draw.randrange(workers))
    scheduler = CallScheduler(CALL, tasks(count), affinity, workers)
    frame = bytes(weight * BUFFER_LIMIT // 4)
    running: list[list[int]] = [[] for _ in range(workers)]
    seen: list[Answer] = []
    died = 0
    while not scheduler.finished:
        for worker in range(workers):
            while len(running[worker]) < 2:
                number = scheduler.next_task(worker, idle=not running[worker])
                if number is None:
                    break
                running[worker].append(number)
        if scheduler.waiting:
            worker = draw.choice([w for w in range(workers) if running[w]])
            if draw.random() < 0.3:
                died += 1
                scheduler.worker_died(worker, running[worker])
                running[worker] = []
            else:
                number = running[worker].pop(0)
                scheduler.complete(number, Answer(f"c{number}", frame))
        seen += scheduler.ready_answers()
    assert [answer.client for answer in seen] == [task.client for task in tasks(count)]
    assert sum(answer.failure is not None for answer in seen) <= died // MAX_DEATHS


def test_the_longest_tasks_of_this_kind_of_call_go_first() -> None:
    affinity = WorkerAffinity()
    for client, trained, measured in (("c0", 1.0, 3.0), ("c1", 2.0, 2.0), ("c2", 3.0, 1.0)):
        affinity.record(CALL, Answer(client, seconds=trained))
        affinity.record(Call(-1, 1, measures=("global",)), Answer(client, seconds=measured))
    training = CallScheduler(CALL, tasks(3), affinity, 1)
    assert [training.next_task(0, idle=True) for _ in range(4)] == [2, 1, 0, None]
    measuring = CallScheduler(Call(-2, 1, measures=("global",)), tasks(3), affinity, 1)
    assert [measuring.next_task(0, idle=True) for _ in range(4)] == [0, 1, 2, None]


def test_new_clients_start_by_cost_and_measured_ones_by_time() -> None:
    affinity = WorkerAffinity({"c0": 10.0, "c1": 40.0, "c2": 20.0, "c3": 30.0})
    first = CallScheduler(CALL, tasks(4), affinity, 1)
    assert [first.next_task(0, idle=True) for _ in range(4)] == [1, 3, 2, 0]
    affinity.record(CALL, Answer("c0", seconds=25.0))
    affinity.record(CALL, Answer("c1", seconds=0.0))  # together half a second per unit of cost
    assert affinity.expected_seconds(CALL, ["c0", "c1", "c2", "c3"]) == [25.0, 0.0, 10.0, 15.0]
    second = CallScheduler(CALL, tasks(4), affinity, 1)
    assert [second.next_task(0, idle=True) for _ in range(4)] == [0, 3, 2, 1]


def test_new_clients_go_to_the_worker_with_the_least_work() -> None:
    affinity = WorkerAffinity({"c0": 1.0, "c1": 2.0, "c2": 3.0, "c3": 6.0})
    scheduler = CallScheduler(CALL, tasks(4), affinity, 2)
    assert [scheduler.next_task(0, idle=False) for _ in range(2)] == [3, None]
    assert [scheduler.next_task(1, idle=True) for _ in range(4)] == [2, 1, 0, None]


@pytest.mark.parametrize(("seconds", "kept", "taken"), [(1.0, [0, 1, 2, None], [3, 4]), (0.01, [0, 1, 2, 3], [])])
def test_the_last_tasks_wait_for_an_idle_worker_unless_they_are_short(
    seconds: float, kept: list[int | None], taken: list[int]
) -> None:
    affinity = WorkerAffinity()
    affinity.record(Call(2, 1, ("longer",), ("longer",)), Answer("c0", seconds=100.0))  # queues are balanced for it
    for task in tasks(5):
        affinity.assign(task.client, 0)
        affinity.record(CALL, Answer(task.client, seconds=seconds))
    scheduler = CallScheduler(CALL, tasks(5), affinity, 2, moves_are_cheap=True)
    assert [scheduler.next_task(0, idle=idle) for idle in (True, False, False, False)] == kept
    assert [scheduler.next_task(1, idle=True) for _ in range(3)] == [*taken, None, None, None][:3]


def test_an_idle_worker_takes_the_longest_task_of_the_queue_with_the_most_work() -> None:
    affinity = WorkerAffinity({"c0": 9.0, "c1": 8.0, "c2": 1.0, "c3": 1.0, "c4": 1.0})
    for client, worker in (("c0", 0), ("c1", 0), ("c2", 1), ("c3", 1), ("c4", 1)):
        affinity.assign(client, worker)
    scheduler = CallScheduler(CALL, tasks(5), affinity, 3)
    assert [scheduler.next_task(2, idle=True) for _ in range(3)] == [0, 1, 2]


def test_only_the_running_task_times_out() -> None:
    scheduler = CallScheduler(CALL, tasks(3), WorkerAffinity(), 1)
    assert [scheduler.next_task(0, idle=idle) for idle in (True, False)] == [0, 1]
    scheduler.timed_out(0, [0, 1], 0.5)
    assert scheduler.next_task(0, idle=True) == 1
    scheduler.complete(1, Answer("c1"))
    late, fine = scheduler.ready_answers()
    assert late.failure == Failure("timeout", "no answer within 0.5 seconds") and fine.failure is None


@settings(max_examples=50, deadline=None)
@given(
    seconds=st.lists(st.floats(0.001, 10), max_size=40),
    started=st.lists(st.floats(0, 30), min_size=1, max_size=4),
    seed=st.integers(0, 99),
)
def test_balancing_keeps_every_task_and_never_delays_the_last_worker(
    seconds: list[float], started: list[float], seed: int
) -> None:
    draw = random.Random(seed)
    queues: list[list[int]] = [[] for _ in started]
    for number in range(len(seconds)):
        queues[draw.randrange(len(started))].append(number)

    def end() -> float:
        return max(time + sum(seconds[n] for n in queue) for time, queue in zip(started, queues, strict=True))

    before = end()
    balance(queues, seconds, started)
    assert sorted(number for queue in queues for number in queue) == list(range(len(seconds)))
    assert end() <= before * (1 + 1e-9)


def test_one_client_moves_if_that_is_enough_and_two_are_swapped_otherwise() -> None:
    queues = [[0, 1, 2], [3]]
    balance(queues, [4.0, 3.0, 1.0, 6.0])  # 8 and 6: the shortest makes it 7 and 7
    assert queues == [[0, 1], [3, 2]]
    queues = [[0, 1], [2, 3]]
    balance(queues, [5.0, 5.0, 4.0, 4.0])  # 10 and 8: a swap makes it 9 and 9
    assert sorted(map(sorted, queues)) == [[0, 3], [1, 2]] or sorted(map(sorted, queues)) == [[0, 2], [1, 3]]


def test_balancing_counts_the_tasks_that_workers_have_started() -> None:
    queues: list[list[int]] = [[], [0, 1], []]
    balance(queues, [2.0, 3.0], started=[9.0, 1.0, 0.0])  # the first finishes last and has nothing left
    assert queues == [[], [0], [1]]
    queues = [[0], [1]]
    balance(queues, [2.0, 3.0], started=[1.0, 0.0])
    assert queues == [[0], [1]]
    balance(queues, [2.0, 3.0], started=[1.0, 6.0])  # 3 and 9: with both tasks the first needs 6, like the second
    assert queues == [[0, 1], []]
    queues = [[0], [1]]
    balance(queues, [2.0, 3.0], started=[1.0, 6.0], allowed=6.0)
    assert queues == [[0], [1]]


def _measured_scheduler(count: int, longer: float) -> CallScheduler:
    """Return a scheduler with `count` tasks of one second, half of them at each of two workers."""
    affinity = WorkerAffinity()
    affinity.record(Call(2, 1, ("other",), ("other",)), Answer("c0", seconds=longer))
    for number, task in enumerate(tasks(count)):
        affinity.assign(task.client, number % 2)
        affinity.record(CALL, Answer(task.client, seconds=1.0))
    return CallScheduler(CALL, tasks(count), affinity, 2, moves_are_cheap=True)


def test_the_last_tasks_differ_in_length_so_that_they_can_be_balanced() -> None:
    affinity = WorkerAffinity()
    for number, task in enumerate(tasks(6)):
        affinity.assign(task.client, 0)
        affinity.record(CALL, Answer(task.client, seconds=1.0 + number))
    measured = CallScheduler(CALL, tasks(6), affinity, 1, moves_are_cheap=True)
    assert [measured.next_task(0, idle=True) for _ in range(6)] == [4, 3, 1, 5, 2, 0]
    elsewhere = CallScheduler(CALL, tasks(6), affinity, 1)
    assert [elsewhere.next_task(0, idle=True) for _ in range(6)] == [5, 4, 3, 2, 1, 0]


def test_a_slow_worker_gets_fewer_of_the_last_tasks() -> None:
    scheduler = _measured_scheduler(8, longer=0.0)
    assert [scheduler.next_task(0, idle=True) for _ in range(2)] == [2, 0]
    assert [scheduler.next_task(1, idle=True) for _ in range(2)] == [3, 1]
    # the first worker has finished both tasks, the second neither: 2 and 4 seconds are left, so one task moves
    scheduler.rebalance([([], 0.0), ([3, 1], 0.0)])
    assert scheduler.next_task(1, idle=True) in {5, 7}
    assert scheduler.next_task(1, idle=True) == 4  # it has no other task of its own


@pytest.mark.parametrize(("count", "longer"), [(10, 0.0), (6, 100.0)])
def test_clients_stay_while_many_tasks_are_left_and_in_short_calls(count: int, longer: float) -> None:
    scheduler = _measured_scheduler(count, longer)
    first = [scheduler.next_task(worker, idle=True) for worker in (0, 1)]
    scheduler.rebalance([([], 0.0), ([1] * 100, 0.0)])
    own = [scheduler.next_task(1, idle=True) for _ in range(count // 2 - 1)]
    assert sorted(number or 0 for number in [first[1], *own]) == list(range(1, count, 2))


def test_small_differences_move_nobody() -> None:
    queues = [[0, 1], [2, 3]]
    balance(queues, [5.0, 5.0, 5.0, 5.0 * (1 - TOLERANCE)])
    assert queues == [[0, 1], [2, 3]]


def test_clients_move_for_the_longest_call_of_a_round_only() -> None:
    """A balance for each kind of call would move clients back and forth."""
    affinity, short = WorkerAffinity(), Call(2, 1, ("upload",), ("upload",))
    for task in tasks(4):
        affinity.assign(task.client, 0)
        affinity.record(CALL, Answer(task.client, seconds=1.0))
        affinity.record(short, Answer(task.client, seconds=0.1))
    long_call = CallScheduler(CALL, tasks(4), affinity, 2, moves_are_cheap=True)
    assert [long_call.next_task(0, idle=True) for _ in range(2)] == [2, 3]
    short_call = CallScheduler(short, tasks(4), affinity, 2, moves_are_cheap=True)
    assert [short_call.next_task(0, idle=True) for _ in range(4)] == [0, 1, 2, 3]


def test_short_work_stays_with_its_worker_once_it_was_measured() -> None:
    affinity = WorkerAffinity()
    for task in tasks(2):
        affinity.assign(task.client, 0)
    first = CallScheduler(CALL, tasks(2), affinity, 2, moves_are_cheap=True)
    assert first.next_task(1, idle=True) == 0
    affinity.record(Call(2, 1, ("longer",), ("longer",)), Answer("c0", seconds=100.0))  # queues are balanced for it
    for task in tasks(2):
        affinity.record(CALL, Answer(task.client, seconds=0.001))
        affinity.assign(task.client, 0)
    assert CallScheduler(CALL, tasks(2), affinity, 2, moves_are_cheap=True).next_task(1, idle=True) is None
    # elsewhere the worker may be gone: nothing may be left for it
    elsewhere = CallScheduler(CALL, tasks(2), affinity, 2)
    assert [elsewhere.next_task(1, idle=True) for _ in range(3)] == [0, 1, None]


def test_the_time_to_load_a_moved_client_is_not_expected_again() -> None:
    affinity = WorkerAffinity()
    affinity.assign("c0", 0)
    affinity.record(CALL, Answer("c0", seconds=3.0))
    affinity.assign("c0", 1)
    affinity.record(CALL, Answer("c0", seconds=9.0))  # loaded by its new worker
    assert affinity.seconds(CALL, "c0") == 3.0
    affinity.assign("c0", 1)
    affinity.record(CALL, Answer("c0", seconds=2.0))
    assert affinity.seconds(CALL, "c0") == 2.5
    affinity.assign("c0", 0)
    affinity.record(CALL, Answer("c0", seconds=1.0))  # even with loading it was faster than expected
    assert affinity.seconds(CALL, "c0") == 1.0
    affinity.record(CALL, Answer("c0", failure=Failure("raised", "an error")))
    assert affinity.seconds(CALL, "c0") == 1.0


def test_the_longest_call_is_found_among_the_clients_of_a_round() -> None:
    affinity, upload = WorkerAffinity(), Call(2, 1, ("upload",), ("upload",))
    for task in tasks(10):
        affinity.record(upload, Answer(task.client, seconds=0.2))
    assert not affinity.is_longest(CALL, ["c0", "c1"])  # never measured
    for client in ("c0", "c1"):
        affinity.record(CALL, Answer(client, seconds=0.5))
    assert affinity.is_longest(CALL, ["c0", "c1"])  # uploads of all ten took longer
    assert not affinity.is_longest(upload, ["c0", "c1"])
    later = Call(9, 5, ("upload",), ("upload",))
    affinity.record(later, Answer("c0", seconds=0.2))
    assert affinity.is_longest(later, ["c0", "c1"])  # the other kind has not run for rounds
