"""The `Partition` class and its file format: an .npz with arrays train_0, test_0, train_1, ... of sample indices."""

from __future__ import annotations

import contextlib
import os
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from polyfed.data.arrays import Ints
from polyfed.data.npz import npz_chunks
from polyfed.errors import InputError

_SPLITS = ("train", "test", "validation")


@dataclass(frozen=True)
class Partition:
    """Sample indices of each client, sorted. They refer to the training split of the dataset.

    `validation` is empty if there is no validation fraction. `notes` are messages for the user, for example about
    classes that no client holds.
    """

    train: tuple[Ints, ...]
    test: tuple[Ints, ...]
    notes: tuple[str, ...] = ()
    validation: tuple[Ints, ...] = ()


def save(partition: Partition, path: Path) -> None:
    """Write the partition atomically. Equal partitions give byte-identical files."""
    path = Path(path)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.writelines(npz_chunks(_arrays(partition)))
            stream.flush()
            os.fsync(stream.fileno())  # otherwise a file that was renamed may be empty after a failure of the disk
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _arrays(partition: Partition) -> Iterator[tuple[str, Ints]]:
    for split in _SPLITS:
        for client, indices in enumerate(getattr(partition, split)):
            yield f"{split}_{client}", indices


def holds(path: Path, partition: Partition, *, samples: int) -> bool:
    """Return whether a file holds the same training and test samples of every client as a partition."""
    path = Path(path)
    # comparing bytes takes a tenth of the time of reading arrays; `read` explains what it cannot read
    with contextlib.suppress(OSError), path.open("rb") as stream:
        if all(stream.read(len(chunk)) == chunk for chunk in npz_chunks(_arrays(partition))) and not stream.read(1):
            return True
    saved = read(path, clients=len(partition.train), samples=samples)  # perhaps written by numpy
    pairs = zip((*partition.train, *partition.test), (*saved.train, *saved.test), strict=True)
    return all(np.array_equal(now, before) for now, before in pairs)


def read(path: Path, *, clients: int, samples: int) -> Partition:
    """Read a partition file for the given numbers of clients and samples. Raise `InputError` if they do not match.

    A sample may belong to several clients; `notes` then reports it. Within a client, a sample occurs once.
    """
    path = Path(path)
    arrays = _load_arrays(path)
    _check_names(path, arrays, clients)
    splits: dict[str, tuple[Ints, ...]] = {}
    for split in _SPLITS:
        if f"{split}_0" in arrays:
            splits[split] = tuple(
                _as_indices(path, f"{split}_{client}", arrays[f"{split}_{client}"], samples)
                for client in range(clients)
            )
    for client in range(clients):
        _check_client(path, client, {split: indices[client] for split, indices in splits.items()})
    used = np.concatenate([indices for by_client in splits.values() for indices in by_client])
    repeated = len(used) - len(np.unique(used))
    notes = (f"{path.name} assigns {repeated} samples to more than one client",) if repeated else ()
    return Partition(splits["train"], splits["test"], notes, splits.get("validation", ()))


def _load_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    if not path.is_file():
        raise InputError(
            f"data.partition.path is '{path}', but there is no such file; set it to an .npz partition file"
        )
    try:
        with np.load(path, allow_pickle=False) as content:
            if not isinstance(content, np.lib.npyio.NpzFile):
                raise InputError(f"{path} holds a single array; expected an .npz with train_0, test_0, ...")
            return {name: content[name] for name in content.files}
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, NotImplementedError) as error:
        raise InputError(
            f"{path} is not a readable partition file ({error}); expected an .npz of integer arrays"
        ) from error


def _check_names(path: Path, arrays: dict[str, Any], clients: int) -> None:
    clients_in_file = sum(name.startswith("train_") for name in arrays)
    if clients_in_file != clients:
        raise InputError(f"{path} is for {clients_in_file} clients, but there are {clients}; both must agree")
    splits = [split for split in _SPLITS if split != "validation" or any(name.startswith(split) for name in arrays)]
    expected = [f"{split}_{client}" for split in splits for client in range(clients)]
    for name in expected:
        if name not in arrays:
            raise InputError(
                f"{path} has no array {name}, but needs {_range('train', clients)} and {_range('test', clients)}"
            )
    unknown = sorted(set(arrays) - set(expected))
    if unknown:
        raise InputError(
            f"{path} has an array {unknown[0]}; expected only {_range('train', clients)} "
            f"and {_range('test', clients)}"
        )


def _range(split: str, clients: int) -> str:
    return f"{split}_0 .. {split}_{clients - 1}"


def _as_indices(path: Path, name: str, array: npt.NDArray[Any], samples: int) -> Ints:
    """Return an array as int64 indices. Raise `InputError` if it does not hold valid indices."""
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise InputError(
            f"{path}: {name} is a {array.dtype} array of shape {array.shape}; expected one-dimensional integers"
        )
    if array.size and (array.min() < 0 or array.max() >= samples):
        outside = int(array.min()) if array.min() < 0 else int(array.max())
        raise InputError(f"{path}: {name} has index {outside}, but the training split has samples 0 to {samples - 1}")
    return array.astype(np.int64)


def _check_client(path: Path, client: int, indices: dict[str, Ints]) -> None:
    if len(indices["train"]) == 0:
        raise InputError(f"{path}: train_{client} is empty, but client {client} needs at least one training sample")
    values, counts = np.unique(np.concatenate(list(indices.values())), return_counts=True)
    if counts.max() > 1:
        sample = int(values[np.argmax(counts)])
        names = [f"{split}_{client}" for split, values_of_split in indices.items() if sample in values_of_split]
        place = " and ".join(names) if len(names) > 1 else f"{names[0]} twice"
        raise InputError(f"{path}: sample {sample} is in {place}; within a client, every sample may occur only once")
