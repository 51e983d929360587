"""A small Ray cluster for the tests, on loopback and in a temporary folder."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

STORE = 80 << 20  # bytes of a node's object store; Ray's smallest is 75 MB


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


@pytest.fixture(scope="session")
def cluster(ray_home: Path) -> Iterator[Any]:
    """Start one cluster for all tests, with one node and two CPUs."""
    pytest.importorskip("ray")
    import ray
    from ray.cluster_utils import Cluster

    # a node that dies is noticed within seconds
    patience = {
        "health_check_initial_delay_ms": 0,
        "health_check_period_ms": 500,
        "health_check_failure_threshold": 3,
    }
    small = {"object_store_memory": STORE, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "_system_config": patience, **small})
    ray.init(made.address, log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()
