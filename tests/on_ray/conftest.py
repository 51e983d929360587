"""A small Ray cluster for the tests, on loopback and in a temporary folder."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

STORE = 80 << 20  # bytes of a node's object store; Ray's smallest is 75 MB

_running = contextlib.ExitStack()  # ends the cluster
_clusters: list[Any] = []  # the one that runs


@pytest.fixture(scope="session")
def ray_home() -> Iterator[Path]:
    """Return Ray's folder. The paths of its sockets must be short."""
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        token = Path(folder) / "token"
        token.write_text("0123456789abcdef" * 4)
        patch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
        yield Path(folder)


@pytest.fixture(scope="module")
def cluster(ray_home: Path) -> Any:
    """Return the cluster of all tests of this folder, with one node and two CPUs."""
    if not _clusters:
        _clusters.append(_running.enter_context(_cluster()))
        _running.callback(_clusters.clear)
    return _clusters[0]


@contextlib.contextmanager
def _cluster() -> Iterator[Any]:
    pytest.importorskip("ray")
    import ray
    from ray.cluster_utils import Cluster

    settings = {
        "health_check_initial_delay_ms": 0,  # a node that dies is noticed within seconds
        "health_check_period_ms": 500,
        "health_check_failure_threshold": 3,
        "enable_worker_prestart": False,  # no processes that no test uses
        "prestart_worker_first_driver": False,
    }
    small = {
        "object_store_memory": STORE,
        "include_dashboard": False,
        "include_log_monitor": False,
        "no_monitor": True,
    }
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "_system_config": settings, **small})
    ray.init(made.address, log_to_driver=False)
    try:
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """End the cluster after the last test of this folder, so that its processes leave the cores to other tests."""
    if nextitem is None or Path(__file__).parent not in nextitem.path.parents:
        _running.close()
