"""Natural partitions: a column of the data names the client of each sample (`scheme: column`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from polyfed.data.arrays import Ints
from polyfed.errors import InputError, nearest


def by_column(columns: Mapping[str, npt.NDArray[Any]], column: str, clients: int) -> tuple[list[Ints], list[str]]:
    """Make one client of each value of the column, largest first. Return the sample indices per client, and notes."""
    if column not in columns:
        hint = nearest(column, columns) if columns else "this dataset has no columns besides inputs and labels"
        raise InputError(f"data.partition.column is '{column}', which the data does not have; {hint}")
    values, counts = np.unique(np.asarray(columns[column]), return_counts=True)
    if clients > len(values):
        raise InputError(
            f"clients is {clients}, but column '{column}' has {len(values)} different values; set clients: "
            f"{len(values)} or fewer"
        )
    largest_first = sorted(range(len(values)), key=lambda k: (-counts[k], str(values[k])))[:clients]
    indices = [np.flatnonzero(np.asarray(columns[column]) == values[k]).astype(np.int64) for k in largest_first]
    names = ", ".join(f"{client} = {values[k]}" for client, k in enumerate(largest_first[:20]))
    notes = [f"clients by {column}: {names}{', ...' if clients > 20 else ''}"]
    if clients < len(values):
        notes.append(
            f"{len(values) - clients} of {len(values)} values of {column} are unused: they have fewest samples"
        )
    return indices, notes
