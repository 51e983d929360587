"""Data that `polyfed.run` receives in memory: arrays, torch datasets, or one of them per client.

Everything becomes one dataset in the cache, named after a hash of its content. Datasets of single clients become one
dataset with the columns `client` and `split`, which the partition scheme `given` reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from polyfed.data.arrays import joined_labels, label_array, size_text, to_array
from polyfed.data.dataset import Dataset, from_arrays, stacked
from polyfed.data.given_partition import CLIENT, SPLIT
from polyfed.errors import InputError

NAME = "arrays"
FORMS = "(x, y), (x_train, y_train, x_test, y_test), a torch Dataset or a polyfed Dataset"
ARRAY_KEYS = ("class_names", "columns", "vocabulary", "name")  # further arguments of `from_arrays`


@dataclass(frozen=True)
class PassedData:
    """A dataset in the cache, and the settings that go with it."""

    dataset: Dataset
    settings: Mapping[str, Any]  # of the config's `data` section
    clients: int | None = None  # set if every client brought its own data
    names: tuple[str, ...] | None = None  # of these clients


class _Arrays(NamedTuple):
    """Samples and labels of one client or of all, and the names of the classes if the source knows them."""

    x: Any
    y: Any
    test_x: Any = None
    test_y: Any = None
    class_names: tuple[str, ...] | None = None
    vocabulary: int = 0


def is_in_memory(data: Any) -> bool:
    """Return whether data is something other than a `data` section of a config."""
    return not isinstance(data, Mapping) or "train" in data or "clients" in data


def passed_data(data: Any) -> PassedData:
    """Convert what a user passes as `data` to a dataset in the cache. Raise `InputError` for anything else."""
    if isinstance(data, Dataset):
        return PassedData(data, {})
    if isinstance(data, Mapping):
        return _from_mapping(data)
    if isinstance(data, list):
        return _one_per_client(data, None, None, {})
    arrays = _arrays_of(data, "data")
    return PassedData(_stored(arrays, {}), {})


def named_data(name: str, data: Any) -> Dataset:
    """Convert data in any form of `passed_data` to a dataset with this name."""
    mapping = data if isinstance(data, Mapping) else {"clients" if isinstance(data, list) else "train": data}
    return passed_data({**mapping, "name": name}).dataset


def default_group(dataset: Dataset) -> str:
    """Return the group of small models for samples of this kind."""
    if dataset.vocabulary:
        return "text4"
    return {1: "tabular4", 2: "series4"}.get(len(dataset.shape), "tiny4")


def _from_mapping(data: Mapping[str, Any]) -> PassedData:
    """Convert `{"train": ..., "test": ...}` or `{"clients": [...], "test": ...}`. Other keys are config keys."""
    if "train" in data and "clients" in data:
        raise InputError("data has both 'train' and 'clients'; give one dataset to partition, or one per client")
    options = {key: data[key] for key in ARRAY_KEYS if key in data}
    settings = {k: v for k, v in data.items() if k not in {"train", "clients", "test", *ARRAY_KEYS}}
    test = None if data.get("test") is None else _arrays_of(data["test"], "data['test']")
    if "clients" in data:
        if "partition" in settings:
            raise InputError("data has 'clients' and 'partition'; every client keeps its own data, so remove one")
        clients = data["clients"]
        names = tuple(str(name) for name in clients) if isinstance(clients, Mapping) else None
        entries = list(clients.values()) if isinstance(clients, Mapping) else list(clients)
        passed = _one_per_client(entries, names, test, options)
        return PassedData(passed.dataset, {**settings, **passed.settings}, passed.clients, passed.names)
    train = _arrays_of(data["train"], "data['train']")
    if test is not None:
        if train.test_x is not None:
            raise InputError("data has 'test', but 'train' brings a test split of its own; remove one of them")
        _check_class_names(train, test)
        train = train._replace(test_x=test.x, test_y=test.y)
    return PassedData(_stored(train, options), settings)


def _one_per_client(
    entries: Sequence[Any], names: tuple[str, ...] | None, test: _Arrays | None, options: Mapping[str, Any]
) -> PassedData:
    """Join the datasets of the clients. Their test samples become the personal test sets."""
    if not entries:
        raise InputError("data is an empty list; give one dataset per client")
    if "columns" in options:
        raise InputError("data has 'clients' and 'columns'; columns describe one dataset, so remove one")
    labels = names or tuple(str(k) for k in range(len(entries)))
    clients = [_arrays_of(entry, f"the data of client {name}") for name, entry in zip(labels, entries, strict=True)]
    own_tests = [client.test_x is not None for client in clients]
    if any(own_tests) and not all(own_tests):
        without = labels[own_tests.index(False)]
        raise InputError(
            f"client {without} has no test samples, but others have; give all clients a test set or none"
        )
    if test is not None:
        _check_class_names(clients[0], test)
    if len({client.class_names for client in clients}) > 1:
        raise InputError("the clients' datasets have different class names; all clients need the same classes")
    parts = [(client.x, client.y, k, "train") for k, client in enumerate(clients)]
    if all(own_tests):
        parts += [(client.test_x, client.test_y, k, "test") for k, client in enumerate(clients)]
    _check_shapes([(x.shape, labels[k]) for x, _, k, _ in parts])
    counts = [len(label_array(y, f"labels of client {labels[k]}")) for _, y, k, _ in parts]
    pictures = {x.dtype == np.uint8 for x, _, _, _ in parts if x.ndim > 2}
    if len(pictures) > 1:
        raise InputError("some clients have uint8 pictures and others do not; all clients need samples of one type")
    columns = {CLIENT: [str(k) for (_, _, k, _), count in zip(parts, counts, strict=True) for _ in range(count)]}
    if all(own_tests):
        columns[SPLIT] = [split for (_, _, _, split), count in zip(parts, counts, strict=True) for _ in range(count)]
    joined = _Arrays(
        np.concatenate([x for x, _, _, _ in parts]),
        joined_labels([y for _, y, _, _ in parts], "labels of the clients"),
        None if test is None else test.x,
        None if test is None else test.y,
        clients[0].class_names,
        clients[0].vocabulary,
    )
    dataset = _stored(joined, {**options, "columns": columns})
    return PassedData(dataset, {"partition": {"scheme": "given"}}, len(entries), names)


def _check_class_names(train: _Arrays, test: _Arrays) -> None:
    """Raise `InputError` if both splits name their classes differently: their labels would not fit together."""
    if None not in (train.class_names, test.class_names) and train.class_names != test.class_names:
        raise InputError("the training and the test dataset have different class names; both need the same classes")


def _check_shapes(shapes: Sequence[tuple[tuple[int, ...], str]]) -> None:
    """Raise `InputError` if two clients have samples of different shapes."""
    first, owner = shapes[0]
    for shape, name in shapes[1:]:
        if shape[1:] != first[1:]:
            raise InputError(
                f"samples of client {owner} have shape {size_text(first[1:])}, those of client {name} "
                f"{size_text(shape[1:])}; all clients need samples of one shape"
            )


def _stored(arrays: _Arrays, options: Mapping[str, Any]) -> Dataset:
    given = {key: value for key, value in options.items() if key != "name"}
    if arrays.class_names is not None:
        given.setdefault("class_names", arrays.class_names)
    given.setdefault("vocabulary", arrays.vocabulary)
    name = str(options.get("name", NAME))
    return from_arrays(name, arrays.x, arrays.y, arrays.test_x, arrays.test_y, **given)


def _arrays_of(data: Any, where: str) -> _Arrays:
    """Return the arrays of one dataset, in any of the accepted forms."""
    if isinstance(data, Dataset):
        arrays = _Arrays(
            data.train.inputs.numpy(),
            data.train.labels.numpy(),
            class_names=data.class_names,
            vocabulary=data.vocabulary,
        )
        if data.test is None:
            return arrays
        return arrays._replace(test_x=data.test.inputs.numpy(), test_y=data.test.labels.numpy())
    if isinstance(data, tuple) and len(data) == 2 and all(_is_dataset(part) for part in data):
        train, test_part = (_arrays_of(part, where) for part in data)
        _check_class_names(train, test_part)
        return train._replace(test_x=test_part.x, test_y=test_part.y)
    if isinstance(data, tuple) and len(data) in (2, 4) and not any(_is_dataset(part) for part in data):
        given = [to_array(part, where, what) for part, what in zip(data, ("samples", "labels") * 2, strict=False)]
        return _Arrays._make([*given, *([None] * (4 - len(given))), None, 0])
    if _is_torch_dataset(data):
        x, y = stacked(where, data)
        names = getattr(data, "classes", None)
        return _Arrays(x, y, class_names=None if names is None else tuple(str(name) for name in names))
    found = f"a tuple of {len(data)}" if isinstance(data, tuple) else f"a {type(data).__name__}"
    raise InputError(f"{where} is {found}; expected {FORMS}, or a list with one of these per client")


def _is_dataset(data: Any) -> bool:
    return isinstance(data, tuple | Dataset) or _is_torch_dataset(data)


def _is_torch_dataset(data: Any) -> bool:
    import torch.utils.data

    return isinstance(data, torch.utils.data.Dataset)
