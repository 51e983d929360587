"""Cost of slicing: time and memory of building ResNet-152 and extracting sub-models from it."""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

REPEATS = 3
BIG, SHAPE, CLASSES = "resnet152", (3, 224, 224), 1000
SLICES = ("resnet152", "resnet101", "resnet152@0.5")  # whole, by depth, by width


def measure() -> dict[str, Any]:
    """Return median seconds, and the peak of additional memory in a new process relative to the model's size.

    One slice exists at a time, as at a server.
    """
    runs = [in_fresh_process() for _ in range(REPEATS)]
    return {
        "figures": {
            "build_and_slice_seconds": round(statistics.median(run["seconds"] for run in runs), 3),
            "slice_seconds": round(statistics.median(run["slice_seconds"] for run in runs), 3),
            "peak_over_size": round(max(run["peak_over_size"] for run in runs), 3),
            "size_mb": round(runs[0]["size"] / 1e6, 1),
        },
        "settings": {"model": BIG, "shape": SHAPE, "classes": CLASSES, "slices": SLICES, "repeats": REPEATS},
    }


def in_fresh_process() -> dict[str, float]:
    """Measure in a new process, because the peak memory of a process never decreases."""
    done = subprocess.run([sys.executable, "-m", __name__], check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def _build_and_slice() -> dict[str, float]:
    from polyfed.models import build
    from polyfed.models.slicing import cut, extract, skeleton

    # Warm-up: the first model of a process loads torch's kernels and meta functions.
    extract(build("tiny-resnet10", shape=(3, 8, 8), classes=2).state_dict(), {})
    skeleton("tiny-resnet10", shape=(3, 8, 8), classes=2)
    before = memory("VmRSS")
    started = time.perf_counter()
    big = build(BIG, shape=SHAPE, classes=CLASSES)
    weights = big.state_dict()
    built = time.perf_counter()
    for small in SLICES:
        extract(weights, cut(big, skeleton(small, shape=SHAPE, classes=CLASSES)))
    ended = time.perf_counter()
    size = sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
    return {
        "seconds": ended - started,
        "slice_seconds": ended - built,
        "peak_over_size": (memory("VmHWM") - before) / size,
        "size": size,
    }


def memory(field: str) -> int:
    """Return the resident memory of this process in bytes: VmRSS now, VmHWM at the peak.

    Systems without /proc return the peak for both, which may include the peak of the parent process.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith(f"{field}:"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_build_and_slice()))
