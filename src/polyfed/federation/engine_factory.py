"""Creates the engine of a simulation."""

from __future__ import annotations

from pathlib import Path

from polyfed.core.engine import Engine
from polyfed.engines.serial import SerialEngine
from polyfed.federation import placement
from polyfed.federation.simulation import HOST_FACTORY, SimulatedFederation, make_host
from polyfed.machine import keep_freed_memory


def make_engine(federation: SimulatedFederation, store: Path, scratch: Path) -> Engine:
    """Create the engine that the config names. Client states go to `store`."""
    keep_freed_memory()
    settings = federation.config.engine
    if settings.name == "ray":
        from polyfed.federation import ray_nodes

        return ray_nodes.ray_engine(federation, store, scratch)
    start = placement.worker_start(settings) if settings.name == "pool" else "serial"
    if start == "serial":
        return SerialEngine(make_host(federation, store))
    from polyfed.engines.pool import PoolEngine

    chosen = placement.pool_devices(settings, federation.config.per_round, federation.largest_model)
    description = {**federation.describe_for_workers(scratch), "store": str(store)}
    costs = federation.client_costs()
    return PoolEngine(HOST_FACTORY, description, chosen, timeout=settings.timeout, costs=costs, start=start)
