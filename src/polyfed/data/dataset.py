"""Datasets for everybody: found by name or made from arrays, decoded once, then memory-mapped.

Importing this module does not import torch; opening a dataset does.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from polyfed.data import cache as cache_room
from polyfed.data.arrays import Decoded, as_labels, as_pixels, checked_part
from polyfed.data.balanced_subset import balanced_limit
from polyfed.data.catalogue import DatasetInfo, catalogue, find
from polyfed.data.locations import locate
from polyfed.errors import InputError

if TYPE_CHECKING:
    import torch
    import torch.utils.data

__all__ = [
    "Dataset",
    "DatasetInfo",
    "Split",
    "balanced_limit",
    "catalogue",
    "from_arrays",
    "from_huggingface",
    "from_torch",
    "is_cached",
    "load",
    "open_cached",
]


@dataclass(frozen=True)
class Split:
    """One part of a dataset. Both tensors are memory-mapped: processes share them through the page cache."""

    images: torch.Tensor  # uint8, (n, C, H, W)
    labels: torch.Tensor  # int64, (n,)


@dataclass(frozen=True)
class Dataset:
    """A dataset that is open: what it is called, what it holds, where it came from."""

    name: str
    classes: int
    shape: tuple[int, int, int]
    class_names: tuple[str, ...]
    train: Split
    test: Split | None
    source: str
    folder: Path


def load(name: str, *, root: Path | None = None, cache: Path | None = None) -> Dataset:
    """Open a dataset of the catalogue, decoding it into the cache first if it is not there yet.

    `digits` comes with scikit-learn and ignores `root`. The others are read from the files in `root` (the folder
    itself, or a subfolder with the dataset's name), or come from the Hugging Face hub when no root is given.
    """
    place = locate(find(name), None if root is None else Path(root))
    folder = cache_room.folder_for(name, place.digest(), cache)
    return open_cached(cache_room.ensure(folder, name, place.decode))


def is_cached(folder: Path) -> bool:
    """Whether a folder is a dataset in the cache, whole."""
    return cache_room.read_meta(folder) is not None


def open_cached(folder: Path) -> Dataset:
    """Open a folder of the cache: no decoding, nothing imported but numpy and torch."""
    folder = Path(folder)
    meta = cache_room.read_meta(folder)
    if meta is None:
        raise InputError(f"{folder} is not a whole dataset folder; load the dataset again to rebuild it")
    channels, height, width = meta["shape"]
    return Dataset(
        name=meta["name"],
        classes=meta["classes"],
        shape=(channels, height, width),
        class_names=tuple(meta["class_names"]),
        train=_open_split(folder, "train"),
        test=_open_split(folder, "test") if meta["has_test"] else None,
        source=meta["source"],
        folder=folder,
    )


def _open_split(folder: Path, word: str) -> Split:
    import torch

    # Copy-on-write ("c") reads the shared pages like "r" does, but torch takes it without a warning about
    # read-only memory, and a stray in-place write stays in its own process instead of reaching the file.
    images, labels = (
        np.load(folder / f"{word}_{kind}.npy", mmap_mode="c", allow_pickle=False) for kind in ("images", "labels")
    )
    return Split(torch.from_numpy(images), torch.from_numpy(labels))


def from_arrays(
    name: str,
    train_x: Any,
    train_y: Any,
    test_x: Any = None,
    test_y: Any = None,
    *,
    class_names: tuple[str, ...] | list[str] | None = None,
    cache: Path | None = None,
) -> Dataset:
    """A dataset from numpy or torch arrays: uint8 or floats in [0, 1], (n, H, W), (n, C, H, W) or (n, H, W, C)."""
    if (test_x is None) != (test_y is None):
        raise InputError(f"{name}: test_x and test_y go together, but only one of them was given")
    train = checked_part(as_pixels(train_x, f"{name}, train_x"), as_labels(train_y, f"{name}, train_y"), name)
    test = None
    if test_x is not None:
        test = checked_part(as_pixels(test_x, f"{name}, test_x"), as_labels(test_y, f"{name}, test_y"), name)
    if class_names is None:
        highest = max(int(part.labels.max()) for part in (train, test) if part is not None)
        class_names = [str(label) for label in range(highest + 1)]
    return _keep(name, Decoded(train, test, tuple(class_names), "arrays"), cache)


def from_torch(
    name: str,
    train: torch.utils.data.Dataset[Any],
    test: torch.utils.data.Dataset[Any] | None = None,
    *,
    cache: Path | None = None,
) -> Dataset:
    """A dataset from map-style torch datasets whose items are (picture, label)."""
    train_x, train_y = _gather(name, train)
    test_x, test_y = (None, None) if test is None else _gather(name, test)
    names = getattr(train, "classes", None)
    return from_arrays(name, train_x, train_y, test_x, test_y, class_names=names, cache=cache)


def _gather(name: str, items: Any) -> tuple[Any, Any]:
    images, labels = [], []
    for number in range(len(items)):
        image, label = items[number]
        images.append(np.asarray(image))
        labels.append(int(label))
    shapes = {image.shape for image in images}
    if len(shapes) != 1:
        raise InputError(
            f"{name}: images have {len(shapes)} different shapes, but one or more of one shape are needed"
        )
    return np.stack(images), np.array(labels)


def from_huggingface(
    name: str,
    data: Any,
    *,
    image: str | None = None,
    label: str | None = None,
    cache: Path | None = None,
) -> Dataset:
    """A dataset from a Hugging Face `Dataset` or `DatasetDict`; the columns are found by type unless named."""
    from polyfed.data.hub import decode_huggingface

    return _keep(name, decode_huggingface(name, data, image=image, label=label), cache)


def _keep(name: str, data: Decoded, cache: Path | None) -> Dataset:
    folder = cache_room.folder_for(name, cache_room.decoded_digest(data), cache)
    return open_cached(cache_room.ensure(folder, name, lambda: data))
