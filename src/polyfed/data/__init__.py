"""Datasets, file readers and data partitions.

`dataset` opens a dataset by name, from files or from arrays, as memory-mapped tensors; `locations` finds its files.
The readers (`idx`, `parquet`, `tables`, `folders`, ...) decode one file layout each into plain arrays.
`partition` assigns the samples to clients and splits the samples of each client into train, validation and test.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyfed.data.dataset import Dataset, from_arrays, from_huggingface, from_torch, load

__all__ = ["Dataset", "from_arrays", "from_huggingface", "from_torch", "load"]


def __getattr__(name: str) -> Any:
    """Import public names on first use: a config reads the partition schemes of this package, but no data."""
    if name in __all__:
        from polyfed.data import dataset

        return getattr(dataset, name)
    raise AttributeError(f"module 'polyfed.data' has no attribute '{name}'")
