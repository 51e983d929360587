"""Runs of a method on a simulated device: bits, synchronisations and transfers, per round and per training step."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from tests import simulated_device, small
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from polyfed import catalogue
from polyfed.core.place import Place
from polyfed.runs.state_store import FolderStore
from polyfed.testing.rounds import Outcome, run_on_serial
from polyfed.testing.toy_federation import ToyFederation

METHODS = [name for name in catalogue.methods() if name != "fedktl"]  # fedktl needs a user's generator
CLASS_COUNTS = ((8, 8, 0, 0), (0, 0, 8, 8))  # two clients with four batches each
BATCH = 4
# Little work, with several steps in every pass of a server's training.
WORK: dict[str, dict[str, object]] = {
    "ccvr": {"virtual": 30, "epochs": 1, "batch_size": 16},
    "dffke": {**small.DFFKE, "batch": 8, "max_local_epochs": 1},
    "fedgen": {"generator_steps": 5, "hidden": 32},
    "fedgh": {"server_batch": 2},
    "fedktl-lite": {"server_epochs": 1, "server_batch": 2, "latent_width": 16},
    "fedl2g": {"warmup": 2},
    "fedlatent": {"samples_per_class": 6},
    "fedtgp": {"server_epochs": 1, "server_batch": 2},
    "fedvtc": {"samples_per_class": 6, "finetune_epochs": 1},
}


@dataclass
class StepLog:
    """Synchronisations and transfers between two steps of the same optimiser."""

    between: list[tuple[int, int]] = field(default_factory=list)
    steps: int = 0
    _last: dict[int, tuple[weakref.ref[Optimizer], int, int]] = field(default_factory=dict)

    def record(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        counts, last = simulated_device.COUNTS, self._last.get(id(optimizer))
        if last is not None and last[0]() is optimizer:
            self.between.append((counts.synchronisations - last[1], counts.transfers - last[2]))
        self._last[id(optimizer)] = (weakref.ref(optimizer), counts.synchronisations, counts.transfers)
        self.steps += 1


@contextmanager
def logged_steps() -> Iterator[StepLog]:
    """Log every optimiser step inside the context."""
    log = StepLog()
    hook = register_optimizer_step_pre_hook(log.record)
    try:
        yield log
    finally:
        hook.remove()


@dataclass(frozen=True)
class DeviceRun:
    """What happened in a run on a simulated device."""

    outcome: Outcome
    steps: StepLog
    synchronisations: int
    transfers: int


def training(batch: int) -> dict[str, Any]:
    """Return `train` settings with a batch size."""
    return {"batch_size": batch, "lr": 0.05, "clip_norm": 1.0}


def federation_run(
    toy: ToyFederation,
    place: Place,
    *,
    evaluate: bool = True,
    class_counts: Sequence[Sequence[int]] = CLASS_COUNTS,
    **changed: Any,
) -> Outcome:
    """Run two rounds of a toy federation at a place."""
    settings = {"train": training(BATCH)} | changed
    federation = toy.federation(toy.config(class_counts, **settings))
    federation.place = place
    roster = federation.profiles()
    server = federation.server(roster)
    return run_on_serial(federation, server, evaluate=evaluate, store=FolderStore(toy.new_folder())).checked()


def device_run(toy: ToyFederation, memory: int | None = None, **changed: Any) -> DeviceRun:
    """Run a toy federation on the simulated device `sim:0`."""
    with simulated_device.simulated() as counts, logged_steps() as log:
        outcome = federation_run(toy, Place(torch.device("sim", 0), memory), **changed)
        if counts.limit is not None:
            gc.collect()  # tensors of this run count as memory of the next one
        return DeviceRun(outcome, log, counts.synchronisations, counts.transfers)
