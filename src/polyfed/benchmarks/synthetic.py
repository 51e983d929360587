"""Synthetic image datasets of any size for benchmarks, with separable classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from polyfed.core import rng
from polyfed.data.dataset import Dataset, from_arrays


def images(name: str, samples: int, size: int, cache: Path, classes: int = 10) -> Dataset:
    """Return a dataset of grey images: one pattern per class, plus noise."""
    generator = rng.numpy_generator(0, "benchmark", name, samples, size)
    patterns = generator.integers(0, 200, (classes, 1, size, size), dtype=np.uint8)
    labels = np.arange(samples, dtype=np.int64) % classes
    noise = generator.integers(0, 56, (samples, 1, size, size), dtype=np.uint8)
    return from_arrays(name, patterns[labels] + noise, labels, patterns, np.arange(classes), cache=cache)
