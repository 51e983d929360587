"""Getting at Ray: joining a cluster or starting one on this machine, quietly, and leaving it as it was found."""

from __future__ import annotations

import contextlib
import importlib
import logging
import math
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from polyfed.errors import InputError
from polyfed.machine import available_cores

NOBODY = "http://127.0.0.1:9"


def installed() -> Any:
    """The `ray` module. It reports nothing to its makers unless the user switched that on."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise InputError(
            f"engine 'ray' needs the extra that brings Ray ({error}): pip install 'polyfed[ray]', "
            "or set engine.name: pool"
        ) from None
    return ray


@contextlib.contextmanager
def _asking_nobody() -> Iterator[None]:
    """While Ray starts: reporting or not, it asks by plain HTTP which cloud this machine is in (169.254.169.254,
    metadata.google.internal). Through a proxy where nobody answers, the question does not leave the machine.
    """
    before = os.environ.get("http_proxy")
    os.environ["http_proxy"] = NOBODY
    try:
        yield
    finally:
        if before is None:
            del os.environ["http_proxy"]
        else:
            os.environ["http_proxy"] = before


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """While Ray starts: nobody outside shall reach it.

    It replaces 127.0.0.1 by an address that others reach, and then listens on all, unless clusters are switched off.
    The switch is read when Ray is imported; its processes read it from the environment.
    """
    constants: Any = importlib.import_module("ray._private.ray_constants")
    name, before = constants.ENABLE_RAY_CLUSTERS_ENV_VAR, constants.ENABLE_RAY_CLUSTER
    said = os.environ.get(name)
    os.environ[name], constants.ENABLE_RAY_CLUSTER = "0", False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before
        if said is None:
            del os.environ[name]
        else:
            os.environ[name] = said


def hearing_again() -> None:
    """For a worker: what it inherited from the processes that Ray started is not meant for it."""
    if os.environ.get("http_proxy") == NOBODY:
        del os.environ["http_proxy"]


@dataclass(frozen=True)
class WorkerResources:
    """What every worker gets."""

    cpus: float
    gpus: float

    def __str__(self) -> str:
        return f"{self.cpus:g} CPUs" + (f" and {self.gpus:g} GPUs" if self.gpus else "")


class Cluster:
    """A cluster to work on. One that was started here ends with `close`; one that was there goes on."""

    def __init__(self, address: str | None, workers: int | None, share: WorkerResources) -> None:
        self.ray = installed()
        self._share = share
        self._ours = not self.ray.is_initialized()
        if self._ours:
            self._begin(address, workers)

    def _begin(self, address: str | None, workers: int | None) -> None:
        quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
        main = threading.current_thread() is threading.main_thread()
        before = signal.getsignal(signal.SIGTERM) if main else None
        try:
            if address is not None or os.environ.get("RAY_ADDRESS"):
                self.ray.init(address, **quiet)
            else:
                cpus = max(available_cores(), math.ceil(self._share.cpus * (workers or 1)))
                with _asking_nobody(), _on_loopback():
                    self.ray.init(
                        "local", num_cpus=cpus, include_dashboard=False, _node_ip_address="127.0.0.1", **quiet
                    )
        except (ConnectionError, ValueError, RuntimeError) as error:
            place = address or os.environ.get("RAY_ADDRESS") or "this machine"
            said = str(error).strip().splitlines() or [type(error).__name__]
            raise InputError(f"engine 'ray' finds no cluster at {place}: {said[0]}") from None
        finally:
            if main:
                signal.signal(signal.SIGTERM, before)  # Ray puts its own there; a run has one that stops politely

    def room_for(self, workers: int | None, most: int) -> int:
        """How many workers to start: as many as were asked for, or as fit and are of use."""
        fit = sum(self._fit(node["Resources"]) for node in self.ray.nodes() if node["Alive"])
        if fit < 1:
            raise InputError(f"no node of the Ray cluster has {self._share}, which one worker asks for")
        if workers is None:
            return max(1, min(fit, most))
        if workers > fit:
            raise InputError(
                f"engine.workers is {workers}, but the Ray cluster has room for {fit} workers with {self._share} each"
            )
        return min(workers, most)

    def _fit(self, there: dict[str, float]) -> int:
        fit = int(there.get("CPU", 0.0) / self._share.cpus)
        return min(fit, int(there.get("GPU", 0.0) / self._share.gpus)) if self._share.gpus else fit

    def start(self, kind: type) -> Any:
        """A new actor, on whichever node has room. It is not restarted by Ray: its tasks must be given out again."""
        remote = self.ray.remote(
            num_cpus=self._share.cpus,
            num_gpus=self._share.gpus,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy="SPREAD",
        )
        return remote(kind).remote()

    def close(self) -> None:
        if self._ours and self.ray.is_initialized():
            self.ray.shutdown()
