"""Data made for measuring time: classes that can be told apart, and as many samples as wanted."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from polyfed.core import rng
from polyfed.data.dataset import Dataset, from_arrays


def images(name: str, samples: int, size: int, cache: Path, classes: int = 10) -> Dataset:
    """Grey images: a pattern per class, plus noise."""
    draw = rng.numpy_generator(0, "benchmark", name, samples, size)
    patterns = draw.integers(0, 200, (classes, 1, size, size), dtype=np.uint8)
    labels = np.arange(samples, dtype=np.int64) % classes
    noise = draw.integers(0, 56, (samples, 1, size, size), dtype=np.uint8)
    return from_arrays(name, patterns[labels] + noise, labels, patterns, np.arange(classes), cache=cache)
