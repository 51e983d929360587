"""Shares from any partitioner of flwr-datasets (`scheme: flower`)."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from polyfed.data.arrays import Ints
from polyfed.errors import InputError, nearest

_ROW = "row"


def flower(
    labels: Ints, clients: int, rng: np.random.Generator, *, partitioner: str, arguments: Mapping[str, Any]
) -> tuple[list[Ints], list[str]]:
    """Run the named partitioner on our labels (column "label") and read off which rows each client got."""
    from datasets import Dataset
    from flwr_datasets import partitioner as room

    names = [name for name in room.__all__ if name.endswith("Partitioner") and name != "Partitioner"]
    if partitioner not in names:
        raise InputError(f"data.partition.partitioner is '{partitioner}'; {nearest(partitioner, names)}")
    kind = getattr(room, partitioner)
    filled = {**_defaults(kind, clients, rng), **arguments}
    try:
        with warnings.catch_warnings():
            # It warns at every failed attempt of its own; what matters is in the error after the last.
            warnings.simplefilter("ignore")
            made = kind(**filled)
            made.dataset = Dataset.from_dict({"label": labels, _ROW: np.arange(len(labels))})
            found = int(made.num_partitions)
        if found != clients:
            raise InputError(
                f"data.partition: {partitioner} makes {found} parts, but there are {clients} clients; both must agree"
            )
        parts = [made.load_partition(client).with_format("numpy") for client in range(clients)]
        shares = [np.asarray(part[_ROW][:], dtype=np.int64) for part in parts]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, NotImplementedError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"data.partition: {partitioner} of flwr-datasets refused: {reason}") from error
    unused = len(labels) - sum(len(share) for share in shares)
    return shares, [f"{partitioner} leaves {unused} samples unused"] if unused > 0 else []


def _defaults(kind: Any, clients: int, rng: np.random.Generator) -> dict[str, Any]:
    """What the federation knows already, for the parameters this partitioner has."""
    known = {"num_partitions": clients, "partition_by": "label", "seed": int(rng.integers(2**31))}
    parameters = inspect.signature(kind).parameters
    return {name: value for name, value in known.items() if name in parameters}
