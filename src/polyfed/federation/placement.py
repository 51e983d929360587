"""Where the processes of a run compute: devices of the main process, of pool workers, of Ray workers and of sites."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, Literal

from polyfed import devices
from polyfed.config import Config, size_in_bytes
from polyfed.config.sections import EngineConfig
from polyfed.core import place
from polyfed.core.client_host import Host
from polyfed.core.client_maker import ClientMaker
from polyfed.core.engine import StateStore
from polyfed.core.place import Place
from polyfed.engines import ray_cluster
from polyfed.errors import InputError
from polyfed.machine import available_cores

CONTEXT = 700 << 20  # bytes that a process needs on a GPU before it computes anything: context and libraries
WORKING = 4  # weights, gradients and two moments of Adam, in multiples of the largest model
DEVICE = "device"  # key of a worker's description


def main_place(config: Config) -> Place:
    """Prepare the main process, where the server computes, and clients of the serial engine."""
    settings = config.engine
    if settings.name == "ray":
        ray_cluster.installed()
    name = ray_device(settings) if settings.name == "ray" else settings.device
    if settings.name == "ray" and name != devices.AUTO and not devices.has(name):
        name = "cpu"  # the driver may be a machine without the devices of its workers
    return place.start(devices.choose(name), memory_limit(settings))


def memory_limit(settings: EngineConfig) -> int | None:
    """Return the bytes for clients and data on a device, or None for `auto`."""
    return None if settings.device_memory == "auto" else size_in_bytes(settings.device_memory)


def host_budget(at: Place, settings: EngineConfig) -> int:
    """Return how many bytes the clients of one host may use, on the device or in main memory."""
    return size_in_bytes(settings.memory_budget) if at.on_cpu or at.memory is None else at.memory


def pool_devices(
    settings: EngineConfig, clients: int, largest_model: Callable[[], int]
) -> list[devices.DeviceChoice]:
    """Return the device of every pool worker: one worker per core, or some workers per GPU.

    `clients` is the number of clients of a round, `largest_model` returns the size of the largest model in bytes.
    """
    kind = devices.kind_of(settings.device)
    count = kind.count()
    if kind.name == "cpu":
        workers = settings.workers if isinstance(settings.workers, int) else available_cores()
    elif isinstance(settings.workers, int):
        workers = settings.workers * count
    else:
        free = kind.free_memory(0)
        need = CONTEXT + WORKING * largest_model()
        fit = 1 if free is None else int(free * place.SHARE / need)
        workers = count * max(1, min(fit, available_cores() // count))
    workers = min(workers, max(1, clients))
    return [devices.choose(kind.name, worker, workers) for worker in range(workers)]


def worker_start(settings: EngineConfig) -> Literal["fork", "spawn", "serial"]:
    """Return how the clients of the pool run: in forks, in new processes, or in this process."""
    if settings.start != "auto":
        return settings.start
    if not hasattr(os, "fork"):
        return "serial"
    return "spawn" if sys.platform == "darwin" else "fork"


def start_notes(settings: EngineConfig) -> list[str]:
    """Return a note for the user if `engine.start: auto` chose anything but forks."""
    if settings.name != "pool" or settings.start != "auto":
        return []
    notes = {
        "serial": "all clients run in one process, because this system has no fork",
        "spawn": "workers are new processes (engine.start: spawn), because forks are not safe on macOS",
    }
    start = worker_start(settings)
    return [notes[start]] if start in notes else []


def ray_device(settings: EngineConfig) -> str:
    """Return the device of Ray workers: a GPU if Ray reserves one for them."""
    if settings.device == devices.AUTO:
        return "cuda" if settings.gpus_per_worker else "cpu"
    if settings.device == "cuda" and not settings.gpus_per_worker:
        raise InputError(
            "engine.device is cuda and engine.name is ray, but engine.gpus_per_worker is 0; set it to the share of a "
            "GPU that one worker uses"
        )
    return settings.device


def ray_place(config: Config) -> Place:
    """Prepare a Ray worker. Ray shows it only the GPUs that it has reserved for it."""
    settings = config.engine
    share = max(1, int(1 / settings.gpus_per_worker)) if settings.gpus_per_worker else 1
    return place.start(devices.DeviceChoice(ray_device(settings), 0, share), memory_limit(settings))


def worker_place(description: Mapping[str, Any], config: Config) -> Place:
    """Prepare a pool worker for the device in its description."""
    return place.start(devices.DeviceChoice(**description[DEVICE]), memory_limit(config.engine))


def recorded_device(at: Place) -> dict[str, str]:
    """Return the device for the record of a result, unless it is the CPU."""
    device = at.device
    return {} if at.on_cpu else {"device": devices.kind_of(device.type).describe(device.index or 0)}


def host_at(at: Place, maker: ClientMaker, store: StateStore, engine: EngineConfig, message_limit: int) -> Host:
    """Return a host whose clients compute at a place."""
    maker.place = at
    return Host(maker, store, host_budget(at, engine), min(size_in_bytes(engine.message_limit), message_limit))
