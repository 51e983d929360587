"""A device in use: bit-identical results, synchronisations, throughput against a bare loop, and TFLOPS.

This is the first thing to run on a machine with a GPU. Federations run as with `polyfed run`, on the device that
`engine.device: auto` chooses; the bare loops run in this process, afterwards.
"""

from __future__ import annotations

import platform
import statistics
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from polyfed import api, devices
from polyfed.benchmarks.device_record import DeviceRecord, write_record
from polyfed.benchmarks.synthetic import images
from polyfed.config import parse
from polyfed.core import rng
from polyfed.core.rounds import one_torch_thread
from polyfed.data.dataset import Dataset
from polyfed.experiment import versions
from polyfed.machine import available_cores
from polyfed.models import ModelSpec, build
from polyfed.models.training_cost import training_cost
from polyfed.training.fit import TrainSettings, make_optimizer

CLIENTS, SAMPLES, SIZE, CLASSES, ROUNDS = 4, 400, 28, 10, 4
STEPS = (4, 12)  # two numbers of training steps, to see what grows with them
WORKERS = (1, 2)
IMAGE = (3, 32, 32)
BATCH_OF_PAPERS = 10  # in FedL2G and FedFree


@dataclass(frozen=True)
class _Load:
    """Training that a device is measured with."""

    model: str
    batch: int
    steps: int


# a processor is busy with batches that leave a GPU idle
LARGE = {"cpu": _Load("resnet10", 32, 3), "gpu": _Load("resnet18", 512, 30)}
SMALL = {"cpu": _Load("tiny-resnet", BATCH_OF_PAPERS, 40), "gpu": _Load("resnet18", BATCH_OF_PAPERS, 60)}


def measure() -> dict[str, Any]:
    """Run all checks and measurements. The report is a block of text to paste into an issue."""
    device = find_device()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = images("device", SAMPLES, SIZE, folder / "cache", CLASSES)
        runs = {workers: _run(data, folder / f"workers{workers}", device, workers=workers) for workers in WORKERS}
        identical = len({run["state_hash"] for run in runs.values()}) == 1
        synchronisations = count_synchronisations(data, folder, device) if device.type == "cuda" else None
        rounds = statistics.median(runs[1]["seconds"]["by_round"][1:])
    bare = _bare_round_seconds(device)
    kind = "cpu" if device.type == "cpu" else "gpu"
    large, small = _training(device, LARGE[kind]), _training(device, SMALL[kind])
    processes = available_cores() if kind == "cpu" else 1  # clients on a processor train side by side
    record = DeviceRecord(device_name(device), large.tflops * processes, small.operations_per_second * processes)
    write_record(record)
    figures = {
        "bit_identical": float(identical),
        **({} if synchronisations is None else {"synchronisations_per_step": synchronisations}),
        "round_seconds": rounds,
        "bare_loop_seconds": bare,
        "round_over_bare_loop": rounds / bare,
        "tflops": record.tflops,
        "operations_per_second": record.operations_per_second,
    }
    rounded = {name: float(f"{value:.4g}") for name, value in figures.items()}
    settings = {"clients": CLIENTS, "samples": SAMPLES, "image": SIZE, "batch": BATCH_OF_PAPERS, "group": "tiny4"}
    return {
        "figures": rounded,
        "settings": settings | {"device": device.type},
        "report": report(device, identical, synchronisations, rounded),
    }


def find_device() -> torch.device:
    """Return the device that `engine.device: auto` chooses: the first of cuda, mps and cpu."""
    return torch.device(devices.kind_of(devices.AUTO).name)


def device_name(device: torch.device) -> str:
    """Return the name of a device for people."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type}, {platform.machine()}, {available_cores()} cores"


def report(device: torch.device, identical: bool, synchronisations: float | None, figures: dict[str, float]) -> str:
    """Return the block that a user pastes into an issue."""
    if synchronisations is None:
        counted = f"cannot be counted on {device.type}"
    else:
        counted = f"{synchronisations:g} per training step (0 is right)"
    used = ", ".join(f"{name} {version}" for name, version in versions().items())
    workers = " and ".join(str(number) for number in WORKERS)
    lines = [
        "polyfed bench device",
        f"  device             {device_name(device)}" + (" (no GPU is used)" if device.type == "cpu" else ""),
        f"  versions           {used}, CUDA {torch.version.cuda}",
        f"  results            {'bit-identical' if identical else 'DIFFERENT'} with {workers} workers",
        f"  synchronisations   {counted}",
        f"  round              {figures['round_seconds']:g} s, {figures['round_over_bare_loop']:.2f} of a bare loop",
        f"  computation        {figures['tflops']:g} TFLOPS with large batches",
        f"  operations         {figures['operations_per_second']:,.0f} per second with batches of {BATCH_OF_PAPERS}",
    ]
    return "\n".join(lines)


def _run(
    data: Dataset, folder: Path, device: torch.device, *, workers: int = 1, steps: int | None = None
) -> dict[str, Any]:
    """Run a small federation of local training and return its result. Fixed steps run in this process."""
    engine: dict[str, Any] = {"name": "pool", "workers": workers} if steps is None else {"name": "serial"}
    config = parse(
        {
            "method": "local",
            "clients": CLIENTS,
            "rounds": ROUNDS if steps is None else 1,
            "data": {"partition": {"scheme": "iid"}, "test_fraction": 0.0},
            "models": {"group": "tiny4"},
            "train": {"batch_size": BATCH_OF_PAPERS, "steps": steps},
            "evaluate": {"every": ROUNDS, "personal": False},
            "engine": engine | {"device": device.type},
        }
    )
    return dict(api.run_config(config, out=folder, data=data))


def count_synchronisations(data: Dataset, folder: Path, device: torch.device) -> float:
    """Return how often a training step makes the processor wait for the GPU, from runs with few and more steps."""
    counts = []
    for steps in STEPS:
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                _run(data, folder / f"steps{steps}", device, steps=steps)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        counts.append(sum("synchroniz" in str(warning.message) for warning in caught))
    return (counts[1] - counts[0]) / (STEPS[1] - STEPS[0]) / CLIENTS


@dataclass(frozen=True)
class _Training:
    tflops: float
    operations_per_second: float


def _training(device: torch.device, load: _Load) -> _Training:
    """Train one network in a bare loop and return what the device reaches."""
    spec = ModelSpec(load.model, stem="image")
    with one_torch_thread():
        cost = training_cost(spec, IMAGE, CLASSES)
        with rng.seeded(0, "benchmark", load.model):
            model = build(spec, shape=IMAGE, classes=CLASSES)
        seconds = _loop_seconds([(model.to(device), *_batch(load.batch, IMAGE, device))], load.steps)
    per_second = load.steps / seconds
    return _Training(
        per_second * load.batch * cost.training_flops / 1e12,
        per_second * 3 * cost.operations,  # a backward pass starts about twice as many as a forward pass
    )


def _bare_round_seconds(device: torch.device) -> float:
    """Return the seconds of a round's training steps in bare loops: the same models, batches of the same size."""
    shape = (1, SIZE, SIZE)
    steps = SAMPLES // CLIENTS // BATCH_OF_PAPERS
    tasks = []
    with one_torch_thread(), rng.seeded(0, "benchmark", "bare"):
        for name in ("tiny-cnn", "tiny-resnet", "tiny-mobile", "tiny-mlp"):
            model = build(ModelSpec(name), shape=shape, classes=CLASSES).to(device)
            tasks.append((model, *_batch(BATCH_OF_PAPERS, shape, device)))
        return statistics.median(_loop_seconds(tasks, steps) for _ in range(ROUNDS - 1))


def _batch(size: int, shape: tuple[int, ...], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random images and labels on a device."""
    x = torch.rand(size, *shape, generator=rng.generator(0, "benchmark", "images"))
    return x.to(device), (torch.arange(size) % CLASSES).to(device)


def _loop_seconds(tasks: Sequence[tuple[torch.nn.Module, torch.Tensor, torch.Tensor]], steps: int) -> float:
    """Return the seconds of training steps, after one step that is not counted."""
    optimizers = [make_optimizer(model.parameters(), TrainSettings()) for model, _, _ in tasks]
    for (model, x, y), optimizer in zip(tasks, optimizers, strict=True):
        model.train()
        _steps(model, x, y, optimizer, 1)
    _wait(tasks[0][1].device)
    started = time.perf_counter()
    for (model, x, y), optimizer in zip(tasks, optimizers, strict=True):
        _steps(model, x, y, optimizer, steps)
    _wait(tasks[0][1].device)
    return time.perf_counter() - started


def _steps(
    model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, optimizer: torch.optim.Optimizer, steps: int
) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def _wait(device: torch.device) -> None:
    """Wait until the device has finished what was started."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
