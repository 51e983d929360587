"""The partition itself and its file: an .npz with arrays train_0, test_0, train_1, ... of sample numbers."""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from polyfed.data.arrays import Ints
from polyfed.errors import InputError

_KINDS = ("train", "test", "validation")


@dataclass(frozen=True)
class Partition:
    """Sample numbers in the dataset's training split, per client, sorted within a client.

    `validation` is empty unless a validation share was asked for; `notes` are sentences about what a user should
    know, such as classes nobody got.
    """

    train: tuple[Ints, ...]
    test: tuple[Ints, ...]
    notes: tuple[str, ...] = ()
    validation: tuple[Ints, ...] = ()


def save(partition: Partition, path: Path) -> None:
    """Write the file whole or not at all; equal partitions give equal bytes."""
    arrays = {
        f"{kind}_{client}": samples for kind in _KINDS for client, samples in enumerate(getattr(partition, kind))
    }
    path = Path(path)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            np.savez(stream, allow_pickle=False, **arrays)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read(path: Path, *, clients: int, samples: int) -> Partition:
    """Read the file and check it against the number of clients and the number of samples there are.

    A sample may serve several clients (a note says so), but never train and test the same one.
    """
    path = Path(path)
    arrays = _arrays(path)
    _check_names(path, arrays, clients)
    parts: dict[str, tuple[Ints, ...]] = {}
    for kind in _KINDS:
        if f"{kind}_0" in arrays:
            parts[kind] = tuple(
                _checked(path, f"{kind}_{client}", arrays[f"{kind}_{client}"], samples) for client in range(clients)
            )
    for client in range(clients):
        _check_client(path, client, {kind: part[client] for kind, part in parts.items()})
    used = np.concatenate([mine for part in parts.values() for mine in part])
    repeated = len(used) - len(np.unique(used))
    notes = (f"{path.name} gives {repeated} samples to more than one client",) if repeated else ()
    return Partition(parts["train"], parts["test"], notes, parts.get("validation", ()))


def _arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    if not path.is_file():
        raise InputError(
            f"data.partition.path is '{path}', but there is no such file; an .npz partition file is needed"
        )
    try:
        with np.load(path, allow_pickle=False) as content:
            if not isinstance(content, np.lib.npyio.NpzFile):
                raise InputError(f"{path} holds a single array, but an .npz with train_0, test_0, ... is needed")
            return {name: content[name] for name in content.files}
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, NotImplementedError) as error:
        raise InputError(
            f"{path} is not a readable partition file ({error}); an .npz of whole numbers is needed"
        ) from error


def _check_names(path: Path, arrays: dict[str, Any], clients: int) -> None:
    found = sum(name.startswith("train_") for name in arrays)
    if found != clients:
        raise InputError(f"{path} is for {found} clients, but there are {clients}; both must agree")
    kinds = [kind for kind in _KINDS if kind != "validation" or any(name.startswith(kind) for name in arrays)]
    wanted = [f"{kind}_{client}" for kind in kinds for client in range(clients)]
    for name in wanted:
        if name not in arrays:
            raise InputError(
                f"{path} has no array {name}, but needs {_range('train', clients)} and {_range('test', clients)}"
            )
    unknown = sorted(set(arrays) - set(wanted))
    if unknown:
        raise InputError(
            f"{path} has an array {unknown[0]}, which is none of {_range('train', clients)} "
            f"and {_range('test', clients)}"
        )


def _range(kind: str, clients: int) -> str:
    return f"{kind}_0 .. {kind}_{clients - 1}"


def _checked(path: Path, name: str, array: npt.NDArray[Any], samples: int) -> Ints:
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise InputError(
            f"{path}: {name} is a {array.dtype} array of shape {array.shape}, but a list of whole numbers is needed"
        )
    if array.size and (array.min() < 0 or array.max() >= samples):
        outside = int(array.min()) if array.min() < 0 else int(array.max())
        raise InputError(
            f"{path}: {name} names sample {outside}, but the training split has samples 0 to {samples - 1}"
        )
    return array.astype(np.int64)


def _check_client(path: Path, client: int, mine: dict[str, Ints]) -> None:
    if len(mine["train"]) == 0:
        raise InputError(
            f"{path}: train_{client} is empty, so client {client} has nothing to train on; it needs a sample"
        )
    values, counts = np.unique(np.concatenate(list(mine.values())), return_counts=True)
    if counts.max() > 1:
        sample = int(values[np.argmax(counts)])
        holders: Sequence[str] = [f"{kind}_{client}" for kind, part in mine.items() if sample in part]
        place = " and ".join(holders) if len(holders) > 1 else f"{holders[0]} twice"
        raise InputError(f"{path}: sample {sample} is in {place}; within a client every sample may occur once")
