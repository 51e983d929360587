"""The place where a process computes: one device. It moves models, samples, messages and states to the device.

Messages, saved states and checkpoints are on the CPU: encoding copies tensors there. On the CPU nothing is moved, and
every function returns its argument.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from polyfed import devices
from polyfed.core.class_tables import ClassTable
from polyfed.core.payload import Payload, State, Value
from polyfed.training import Samples

CPU = torch.device("cpu")
SHARE = 0.5  # of a device's free memory that clients and their data may use; the rest is for activations
Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True)
class Place:
    """A device, and how much of its memory may hold clients and their data."""

    device: torch.device = CPU
    memory: int | None = None  # bytes for clients and data on the device; None: no limit

    @property
    def on_cpu(self) -> bool:
        return self.device.type == "cpu"

    def module(self, module: Module) -> Module:
        """Move a module to the device."""
        return module if self.on_cpu else module.to(self.device)

    def samples(self, samples: Samples) -> Samples:
        """Move samples to the device. Inputs that do not fit stay on the CPU, and are copied there in chunks."""
        if self.on_cpu:
            return samples
        fits = self.memory is None or samples.inputs.nbytes <= self.memory
        return Samples(self.tensor(samples.inputs) if fits else samples.inputs, self.tensor(samples.labels))

    def tensor(self, tensor: Tensor) -> Tensor:
        return tensor if self.on_cpu else tensor.to(self.device, non_blocking=True)

    def payload(self, payload: Payload) -> Payload:
        """Move a message to the device."""
        return payload if self.on_cpu else Payload({name: moved(v, self.device) for name, v in payload.items()})

    def state(self, state: State) -> State:
        """Move a state to the device."""
        return state if self.on_cpu else {name: moved(value, self.device) for name, value in state.items()}


def moved(value: Value, device: torch.device) -> Value:
    """Return a value of a message or a state with all tensors on a device."""
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=device.type != "cpu")
    if isinstance(value, ClassTable):
        return value.to(device)
    return {key: moved(item, device) for key, item in value.items()} if isinstance(value, Mapping) else value


def to_cpu(values: Mapping[str, Value]) -> dict[str, Value]:
    """Return a message or a state with all tensors on the CPU."""
    return {name: moved(value, CPU) for name, value in values.items()}


def start(choice: devices.DeviceChoice, memory: int | None = None) -> Place:
    """Prepare this process for a device, and return the place. `memory` limits clients and data on the device.

    Without a limit, they get half of the device's free memory, divided by the number of workers that share it.
    """
    devices.load_source(choice.source)
    kind = devices.kind_of(choice.kind)
    index = kind.index_in_worker(choice.index) if choice.environment() else choice.index
    device = kind.start(index)
    if memory is None and device.type != "cpu":
        free = kind.free_memory(index)
        memory = None if free is None else int(free * SHARE / choice.workers)
    return Place(device, memory)


def server_place(place: Place) -> Place:
    """Return the place of the server: the same device, unless it lacks the double precision that means need."""
    return place if devices.kind_of(place.device.type).has_double else Place()
