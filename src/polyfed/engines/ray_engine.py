"""The Ray engine, for simulations on several machines. Clients live in Ray actors, many in each.

A client runs on the actor that had it last. An actor returns a client's new state with the answer, and the driver
writes it to its disk before it accepts the answer. If an actor or a node dies, nothing is lost: its tasks are sent to
another actor, together with the state that they start from.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from polyfed import profiling
from polyfed.core.engine import Answer, Call, StateStore, Task
from polyfed.engines.ray_actor import Actor, block_of
from polyfed.engines.ray_call import RayCall, Worker, error_summary
from polyfed.engines.ray_cluster import Cluster
from polyfed.engines.scheduler import MAX_DEATHS, WorkerAffinity
from polyfed.errors import RunError


class RayEngine:
    """Runs tasks on the actors of a cluster."""

    concurrent = True
    trusted = True

    def __init__(
        self,
        cluster: Cluster,
        host_factory: str,
        description: Mapping[str, Any],
        files: Sequence[bytes],
        store: StateStore,
        workers: int,
        *,
        timeout: float | None = None,
        costs: Mapping[str, float] | None = None,
    ) -> None:
        self.ray = cluster.ray
        self.store = store
        self.timeout = timeout
        self.evaluates_after_steps = timeout is None  # a timeout is for the step alone
        self.affinity = WorkerAffinity(costs)
        self.held: dict[str, tuple[Any, int]] = {}  # the actor that has a client, and the state version
        self._cluster = cluster
        recorder = profiling.current()
        if recorder is not None:
            recorder.add_workers(workers)
        # stored once, also for actors that replace others later
        self._setup = (
            host_factory,
            json.dumps({**description, "profile": recorder is not None}).encode(),
            self.ray.put([block_of(file) for file in files]),
        )
        self._failed_starts = 0
        self._open = True
        self.workers = [self._start(index) for index in range(workers)]

    def call(self, call: Call, shared: bytes, tasks: Sequence[Task]) -> Iterator[Answer]:
        return RayCall(self, call, shared, tasks).answers()

    def peak_memory(self) -> int:
        """Return the sum over the actors that answer."""
        references = [worker.actor.peak.remote() for worker in self.workers if worker.starting is None]
        total = 0
        for reference in references:
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
        """Kill all actors at once. Stored states are complete, and the actors are no longer needed."""
        self._open = False
        for worker in self.workers:
            worker.running.clear()
            if self.ray.is_initialized():
                self.ray.kill(worker.actor)

    def _start(self, index: int) -> Worker:
        actor = self._cluster.start(Actor)
        return Worker(index, actor, actor.set_up.remote(*self._setup))

    def replace(self, worker: Worker) -> None:
        """Kill an actor, if it is still running, and start a new one in its place."""
        if not self._open:
            raise RunError("the engine was stopped while a call was under way")
        self.ray.kill(worker.actor)
        self.workers[worker.index] = self._start(worker.index)

    def finish_start(self, worker: Worker) -> None:
        """Read the result of an actor's set-up. Replace the actor if it died."""
        try:
            message = self.ray.get(worker.starting)
        except self.ray.exceptions.RayError as error:
            self._failed_starts += 1
            if self._failed_starts >= MAX_DEATHS:
                raise RunError(f"Ray could not start a worker: {error_summary(error)}") from None
            self.replace(worker)
            return
        if message:
            raise RunError(f"a worker could not be set up: {message}")
        worker.starting, worker.since, self._failed_starts = None, time.monotonic(), 0
