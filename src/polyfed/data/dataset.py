"""Datasets: loaded by name or created from arrays, decoded once into the cache, then memory-mapped.

Importing this module does not import torch; opening a dataset does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from polyfed import plugins
from polyfed.data import cache as dataset_cache
from polyfed.data.arrays import (
    KINDS,
    Decoded,
    Part,
    as_inputs,
    checked_part,
    joined_labels,
    label_array,
    named_labels,
    number_names,
    renumbered,
    to_array,
)
from polyfed.data.balanced_subset import balanced_limit
from polyfed.data.catalogue import KNOWN, DatasetInfo, Format, catalogue, known_dataset
from polyfed.data.locations import locate
from polyfed.errors import InputError

if TYPE_CHECKING:
    import torch
    import torch.utils.data

__all__ = [
    "Dataset",
    "DatasetInfo",
    "Format",
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
    """One split of a dataset. The tensors are memory-mapped: processes share them through the page cache."""

    inputs: torch.Tensor  # uint8, float32 or int64, (n, ...)
    labels: torch.Tensor  # int64, (n,)
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict, repr=False)  # one value per sample


@dataclass(frozen=True)
class Dataset:
    """An open dataset with its memory-mapped splits."""

    name: str
    classes: int
    shape: tuple[int, ...]  # of one sample
    class_names: tuple[str, ...]
    train: Split
    test: Split | None
    source: str
    folder: Path
    vocabulary: int = 0  # number of tokens, including 0 for padding; 0 for inputs that are not tokens
    features: tuple[str, ...] = ()  # columns of a table that make up a sample, if the files name them
    digest: str = ""  # of the files that it was read from, at a site

    @property
    def kind(self) -> str:
        """What a sample is: 'picture', 'numbers' or 'tokens'."""
        return KINDS[str(self.train.inputs.dtype).removeprefix("torch.")]


def load(name: str, *, root: Path | None = None, cache: Path | None = None, how: Format | None = None) -> Dataset:
    """Open a dataset, decoding it into the cache first if it is not there yet.

    Datasets that ship with scikit-learn ignore `root`. Others are read from the files in `root` (the folder itself
    or a subfolder with the dataset's name), or from the Hugging Face hub if no root is given. Your own
    data may have any other name and needs a root; `how` gives the layout and the columns of its files.

    Examples:
        >>> digits = polyfed.data.load("digits")
        >>> digits.shape, digits.classes, len(digits.train.labels)
        ((1, 8, 8), 10, 1438)
    """
    if root is None and name not in KNOWN and name in plugins.entry_points(plugins.DATASETS):
        return _from_package(name)
    how = how or Format()
    place = locate(known_dataset(name, root=root, how=how), None if root is None else Path(root))
    folder = dataset_cache.folder_for(name, f"{place.digest()}{how.digest()}", cache)
    return open_cached(dataset_cache.ensure(folder, name, place.decode))


def _from_package(name: str) -> Dataset:
    """Create the dataset of an installed package: a function that returns what `polyfed.run(data=...)` accepts."""
    from polyfed.data.in_memory import named_data  # imports this module

    function = plugins.load(plugins.DATASETS, name)
    title = plugins.describe(plugins.DATASETS, name)
    if not callable(function):
        raise InputError(f"{title} is a {type(function).__name__}; expected a function that returns the data")
    try:
        data = function()
    except Exception as error:  # other packages can raise anything
        raise InputError(f"{title} cannot be read: {type(error).__name__}: {error}") from None
    return named_data(name, data)


def is_cached(folder: Path) -> bool:
    """Return whether a folder is a complete dataset of the cache."""
    return dataset_cache.read_meta(folder) is not None


def open_cached(folder: Path) -> Dataset:
    """Open a folder of the cache, without decoding anything."""
    folder = Path(folder)
    meta = dataset_cache.read_meta(folder)
    if meta is None:
        raise InputError(f"{folder} is not a complete dataset folder; load the dataset again to rebuild it")
    return Dataset(
        name=meta["name"],
        classes=meta["classes"],
        shape=tuple(meta["shape"]),
        class_names=tuple(meta["class_names"]),
        train=_open_split(folder, "train", meta["columns"]),
        test=_open_split(folder, "test", meta["columns"]) if meta["has_test"] else None,
        source=meta["source"],
        folder=folder,
        vocabulary=meta["vocabulary"],
        features=tuple(meta.get("features", ())),
    )


def _open_split(folder: Path, split: str, columns: Mapping[str, list[str]]) -> Split:
    import torch

    def mapped(kind: str) -> np.ndarray[Any, Any]:
        # Copy-on-write ("c") reads the shared pages like "r" does, but torch takes it without a warning about
        # read-only memory, and a stray in-place write stays in its own process instead of reaching the file.
        array: np.ndarray[Any, Any] = np.load(folder / f"{split}_{kind}.npy", mmap_mode="c", allow_pickle=False)
        return array

    names = [key.removeprefix(f"{split}/") for key in columns if key.startswith(f"{split}/")]
    values = {
        name: tuple(columns[f"{split}/{name}"][code] for code in mapped(f"column{position}"))
        for position, name in enumerate(names)
    }
    return Split(torch.from_numpy(mapped("inputs")), torch.from_numpy(mapped("labels")), values)


def from_arrays(
    name: str,
    train_x: Any,
    train_y: Any,
    test_x: Any = None,
    test_y: Any = None,
    *,
    class_names: Sequence[str] | None = None,
    columns: Mapping[str, Sequence[Any]] | None = None,
    vocabulary: int = 0,
    cache: Path | None = None,
) -> Dataset:
    """Create a dataset from numpy or torch arrays with samples of any shape.

    uint8 arrays of shape (n, H, W), (n, C, H, W) or (n, H, W, C) are pictures. Floats are stored as float32 without
    scaling. Integers are tokens if `vocabulary`, the number of tokens, is given. Labels are integers from 0, or text.
    `columns` gives further values per training sample, for `partition: {scheme: column, column: NAME}`.

    Examples:
        >>> import numpy as np
        >>> x = np.linspace(0, 1, 12, dtype=np.float32).reshape(4, 3)
        >>> data = polyfed.data.from_arrays("sensor", x, ["low", "low", "high", "high"])
        >>> data.shape, data.kind, data.class_names
        ((3,), 'numbers', ('high', 'low'))
    """
    if (test_x is None) != (test_y is None):
        raise InputError(f"{name}: test_x and test_y go together, but only one of them is given")
    inputs = as_inputs(train_x, f"{name}, train_x", vocabulary=vocabulary)
    where = f"{name}, labels"
    all_labels = joined_labels([train_y] if test_y is None else [train_y, test_y], where)
    labels, names = named_labels(all_labels, where)
    if names is not None and class_names and all_labels.dtype.kind != "b":
        labels, names = renumbered(labels, names, class_names, where), tuple(class_names)
    count = len(label_array(train_y, where))
    text_columns = {column: tuple(str(value) for value in values) for column, values in (columns or {}).items()}
    train = checked_part(inputs, labels[:count], name, text_columns)
    test: Part | None = None
    if test_x is not None:
        test = checked_part(as_inputs(test_x, f"{name}, test_x", vocabulary=vocabulary), labels[count:], name)
    if names is None:
        names = number_names(int(labels.max()) + 1, where) if not class_names else tuple(class_names)
    return _store(name, Decoded(train, test, tuple(class_names or names), "arrays", vocabulary), cache)


def from_torch(
    name: str,
    train: torch.utils.data.Dataset[Any],
    test: torch.utils.data.Dataset[Any] | None = None,
    *,
    vocabulary: int = 0,
    cache: Path | None = None,
) -> Dataset:
    """Create a dataset from map-style torch datasets whose items are (input, label).

    Examples:
        >>> import torch
        >>> from torch.utils.data import TensorDataset
        >>> data = polyfed.data.from_torch("windows", TensorDataset(torch.rand(8, 2, 16), torch.arange(8) % 2))
        >>> data.shape, data.classes
        ((2, 16), 2)
    """
    train_x, train_y = stacked(name, train)
    test_x, test_y = (None, None) if test is None else stacked(name, test)
    names = getattr(train, "classes", None)
    return from_arrays(name, train_x, train_y, test_x, test_y, class_names=names, vocabulary=vocabulary, cache=cache)


def stacked(name: str, items: Any) -> tuple[Any, Any]:
    """Return the samples and labels of a torch dataset. Raise `InputError` if its items are not (input, label)."""
    from torch.utils.data import IterableDataset

    if isinstance(items, IterableDataset) or not hasattr(items, "__len__"):
        raise InputError(f"{name}: a {type(items).__name__} cannot be indexed; expected a dataset with a length")
    pairs = [items[number] for number in range(len(items))]
    for number, pair in enumerate(pairs):
        if not isinstance(pair, tuple | list) or len(pair) < 2:
            raise InputError(f"{name}: item {number} is a {type(pair).__name__}; expected a pair (input, label)")
    inputs = [to_array(pair[0], name, "samples") for pair in pairs]
    shapes = {array.shape for array in inputs}
    if len(shapes) != 1:
        raise InputError(f"{name}: samples have {len(shapes)} different shapes; all samples must have one shape")
    labels = [pair[1].tolist() if hasattr(pair[1], "tolist") else pair[1] for pair in pairs]
    return np.stack(inputs), label_array(labels, f"{name}, labels")


def from_huggingface(
    name: str,
    data: Any,
    *,
    image: str | None = None,
    label: str | None = None,
    cache: Path | None = None,
) -> Dataset:
    """Create a dataset from a Hugging Face `Dataset` or `DatasetDict`. Select columns by type unless named."""
    from polyfed.data.hub import decode_huggingface

    return _store(name, decode_huggingface(name, data, image=image, label=label), cache)


def _store(name: str, data: Decoded, cache: Path | None) -> Dataset:
    folder = dataset_cache.folder_for(name, dataset_cache.decoded_digest(data), cache)
    return open_cached(dataset_cache.ensure(folder, name, lambda: data))
