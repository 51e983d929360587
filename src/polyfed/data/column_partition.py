"""Natural partitions: a column of the data names the client of each sample (`scheme: column`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from polyfed.data.arrays import Ints
from polyfed.errors import InputError, nearest


def by_column(
    columns: Mapping[str, npt.NDArray[Any]], column: str, clients: int, names: Sequence[str] | None = None
) -> tuple[list[Ints], list[str]]:
    """Make one client of each value of the column. Return the sample indices per client, and notes.

    If clients have names, each gets the samples whose value is its name. Otherwise the largest value comes first.
    """
    if column not in columns:
        hint = nearest(column, columns) if columns else "this dataset has no columns besides inputs and labels"
        raise InputError(f"data.partition.column is '{column}', which the data does not have; {hint}")
    values, counts = np.unique(np.asarray(columns[column]), return_counts=True)
    if clients > len(values):
        raise InputError(
            f"clients is {clients}, but column '{column}' has {len(values)} different values; set clients: "
            f"{len(values)} or fewer"
        )
    if names is None:
        chosen = sorted(range(len(values)), key=lambda k: (-counts[k], str(values[k])))[:clients]
    else:
        positions = {str(value): k for k, value in enumerate(values)}
        unknown = [name for name in names if name not in positions]
        if unknown:
            raise InputError(
                f"names has '{unknown[0]}', but no sample has this value in column '{column}', which names the "
                f"clients; {nearest(unknown[0], positions)}"
            )
        chosen = [positions[name] for name in names]
    indices = [np.flatnonzero(np.asarray(columns[column]) == values[k]).astype(np.int64) for k in chosen]
    shown = ", ".join(f"{client} = {values[k]}" for client, k in enumerate(chosen[:20]))
    notes = [] if names is not None else [f"clients by {column}: {shown}{', ...' if clients > 20 else ''}"]
    if clients < len(values):
        reason = "they have fewest samples" if names is None else "they are not in names"
        notes.append(f"{len(values) - clients} of {len(values)} values of {column} are unused: {reason}")
    return indices, notes
