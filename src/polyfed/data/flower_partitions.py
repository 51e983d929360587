"""Partitions by any partitioner of flwr-datasets (`scheme: flower`)."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from polyfed.data.arrays import Ints
from polyfed.errors import InputError, nearest, require

_ROW = "row"


def check_installed() -> None:
    """Raise `InputError` if flwr-datasets is not installed."""
    require("flwr_datasets", extra="partitioners", sentence="data.partition.scheme 'flower' needs")


def flower(
    labels: Ints, clients: int, rng: np.random.Generator, *, partitioner: str, arguments: Mapping[str, Any]
) -> tuple[list[Ints], list[str]]:
    """Run a partitioner on the labels, in the column "label". Return the sample indices of each client, and notes."""
    check_installed()
    from datasets import Dataset
    from flwr_datasets import partitioner as partitioners

    names = [name for name in partitioners.__all__ if name.endswith("Partitioner") and name != "Partitioner"]
    if partitioner not in names:
        raise InputError(f"data.partition.partitioner is '{partitioner}'; {nearest(partitioner, names)}")
    partitioner_class = getattr(partitioners, partitioner)
    arguments = {**_default_arguments(partitioner_class, clients, rng), **arguments}
    try:
        with warnings.catch_warnings():
            # flwr-datasets warns after each failed attempt; its final error says what is wrong.
            warnings.simplefilter("ignore")
            instance = partitioner_class(**arguments)
            instance.dataset = Dataset.from_dict({"label": labels, _ROW: np.arange(len(labels))})
            partitions = int(instance.num_partitions)
        if partitions != clients:
            raise InputError(
                f"data.partition: {partitioner} creates {partitions} partitions, but there are {clients} clients; "
                "both must agree"
            )
        rows = [instance.load_partition(client).with_format("numpy") for client in range(clients)]
        indices = [np.asarray(own[_ROW][:], dtype=np.int64) for own in rows]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, NotImplementedError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"data.partition: {partitioner} of flwr-datasets failed: {reason}") from error
    unused = len(labels) - sum(len(own) for own in indices)
    return indices, [f"{partitioner} leaves {unused} samples unused"] if unused > 0 else []


def _default_arguments(partitioner_class: Any, clients: int, rng: np.random.Generator) -> dict[str, Any]:
    """Return the number of clients, the label column and a seed, as far as the partitioner has such parameters."""
    defaults = {"num_partitions": clients, "partition_by": "label", "seed": int(rng.integers(2**31))}
    parameters = inspect.signature(partitioner_class).parameters
    return {name: value for name, value in defaults.items() if name in parameters}
