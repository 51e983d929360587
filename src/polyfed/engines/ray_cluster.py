"""Ray clusters: connect to one, or start one on this machine."""

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

NO_PROXY = "http://127.0.0.1:9"


def installed() -> Any:
    """Import and return `ray`, with usage statistics off unless the user enabled them."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise InputError(
            f"engine 'ray' needs Ray ({error}): pip install 'polyfed[ray]', or set engine.name: pool"
        ) from None
    return ray


@contextlib.contextmanager
def _block_cloud_detection() -> Iterator[None]:
    """Keep Ray from detecting the cloud provider while it starts.

    Even with statistics off, it sends plain HTTP requests to 169.254.169.254 and metadata.google.internal. A proxy
    address without a listener keeps these requests on this machine.
    """
    before = os.environ.get("http_proxy")
    os.environ["http_proxy"] = NO_PROXY
    try:
        yield
    finally:
        if before is None:
            del os.environ["http_proxy"]
        else:
            os.environ["http_proxy"] = before


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """Make Ray listen on the loopback interface only while it starts.

    Unless clusters are disabled, Ray replaces 127.0.0.1 by a public address and listens on all interfaces. The switch
    is read when Ray is imported; its processes read it from the environment.
    """
    constants: Any = importlib.import_module("ray._private.ray_constants")
    name, before = constants.ENABLE_RAY_CLUSTERS_ENV_VAR, constants.ENABLE_RAY_CLUSTER
    variable = os.environ.get(name)
    os.environ[name], constants.ENABLE_RAY_CLUSTER = "0", False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before
        if variable is None:
            del os.environ[name]
        else:
            os.environ[name] = variable


def restore_proxy() -> None:
    """Remove the blocking proxy that a worker inherited from Ray's processes."""
    if os.environ.get("http_proxy") == NO_PROXY:
        del os.environ["http_proxy"]


@dataclass(frozen=True)
class WorkerResources:
    """CPUs and GPUs of every worker."""

    cpus: float
    gpus: float

    def __str__(self) -> str:
        return f"{self.cpus:g} CPUs" + (f" and {self.gpus:g} GPUs" if self.gpus else "")


class Cluster:
    """Connection to a Ray cluster. `close` shuts it down only if it was started here."""

    def __init__(self, address: str | None, workers: int | None, resources: WorkerResources) -> None:
        self.ray = installed()
        self._resources = resources
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
                cpus = max(available_cores(), math.ceil(self._resources.cpus * (workers or 1)))
                with _block_cloud_detection(), _on_loopback():
                    self.ray.init(
                        "local", num_cpus=cpus, include_dashboard=False, _node_ip_address="127.0.0.1", **quiet
                    )
        except (ConnectionError, ValueError, RuntimeError) as error:
            place = address or os.environ.get("RAY_ADDRESS") or "this machine"
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise InputError(f"engine 'ray' finds no cluster at {place}: {lines[0]}") from None
        finally:
            if main:
                signal.signal(
                    signal.SIGTERM, before
                )  # Ray installs its own handler; the run's handler writes a checkpoint

    def worker_count(self, workers: int | None, most: int) -> int:
        """Return how many workers to start: the requested number, or as many as fit, but no more than `most`."""
        fit = sum(self._fit(node["Resources"]) for node in self.ray.nodes() if node["Alive"])
        if fit < 1:
            raise InputError(f"no node of the Ray cluster has {self._resources}, which one worker needs")
        if workers is None:
            return max(1, min(fit, most))
        if workers > fit:
            raise InputError(
                f"engine.workers is {workers}, but the Ray cluster has room for {fit} workers with "
                f"{self._resources} each"
            )
        return min(workers, most)

    def _fit(self, available: dict[str, float]) -> int:
        fit = int(available.get("CPU", 0.0) / self._resources.cpus)
        return min(fit, int(available.get("GPU", 0.0) / self._resources.gpus)) if self._resources.gpus else fit

    def start(self, kind: type) -> Any:
        """Start an actor on any node with free resources. Ray does not restart it; the engine repeats its tasks."""
        remote = self.ray.remote(
            num_cpus=self._resources.cpus,
            num_gpus=self._resources.gpus,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy="SPREAD",
        )
        return remote(kind).remote()

    def close(self) -> None:
        if self._ours and self.ray.is_initialized():
            self.ray.shutdown()
