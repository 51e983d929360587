"""Time of a round with unequal clients on the pool: longest clients first, compared with client order.

Clients sleep instead of training, so that the figures show the order of starts and not the load of the machine.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

from polyfed.core.codec import decode, encode
from polyfed.core.engine import Answer, Call, Task
from polyfed.devices import DeviceChoice
from polyfed.engines.pool import PoolEngine
from polyfed.engines.scheduler import WorkerAffinity

WORKERS = 2
SECONDS = (0.1, 0.1, 0.2, 0.1, 0.1, 0.2, 0.1, 0.3, 0.2, 0.6)  # by client: the longest come last
ROUNDS = 4  # the first one uses estimates, the others measured times


class SleepingHost:
    """Clients that sleep as long as their message says."""

    def __init__(self, description: Mapping[str, Any]) -> None:
        self.description = description

    def handle(self, call: Call, task: Task, shared: bytes, *, alone: bool = True) -> Answer:
        started = time.perf_counter()
        time.sleep(decode(task.own).number("seconds"))
        return Answer(task.client, encode({}).data, seconds=time.perf_counter() - started)


class ClientOrder(WorkerAffinity):
    """Ignores costs and times, so that clients start in their order."""

    def expected_seconds(self, call: Call, clients: Sequence[str]) -> list[float]:
        return [0.0] * len(clients)

    def seconds(self, call: Call, client: str) -> float:
        return 0.0

    def is_longest(self, call: Call, clients: Sequence[str]) -> bool:
        return False


def measure() -> dict[str, Any]:
    """Run rounds with both orders in turn. A ratio above 1 is the gain from starting the longest clients first."""
    costs = {f"c{k}": seconds for k, seconds in enumerate(SECONDS)}
    factory = f"{__name__}:SleepingHost"
    balanced = PoolEngine(factory, {}, [DeviceChoice()] * WORKERS, costs=costs)
    ordered = PoolEngine(factory, {}, [DeviceChoice()] * WORKERS)
    ordered.affinity = ClientOrder()
    try:
        for pool in (balanced, ordered):
            _round_seconds(pool, dict.fromkeys(("a", "b"), 0.0), 1)  # until the workers are set up
        turns = [[_round_seconds(pool, costs, 2 + k) for pool in (balanced, ordered)] for k in range(ROUNDS)]
    finally:
        balanced.close()
        ordered.close()
    ratios = [ordered_seconds / balanced_seconds for balanced_seconds, ordered_seconds in turns]
    return {
        "figures": {
            "client_order_over_longest_first_round_1": round(ratios[0], 3),
            "client_order_over_longest_first_later": round(statistics.median(ratios[1:]), 3),
            "longest_first_over_ideal": round(
                statistics.median(balanced_seconds for balanced_seconds, _ in turns) * WORKERS / sum(SECONDS), 3
            ),
        },
        "settings": {"workers": WORKERS, "client_seconds": SECONDS, "rounds": ROUNDS},
    }


def _round_seconds(pool: PoolEngine, seconds: Mapping[str, float], number: int) -> float:
    """Call all clients once and return how long it took."""
    tasks = [Task(client, 0, encode({"seconds": value}).data) for client, value in seconds.items()]
    started = time.perf_counter()
    list(pool.call(Call(number, number, ("sleep",), ("sleep",)), encode({}).data, tasks))
    return time.perf_counter() - started
