"""Partition of clients that brought their own data to `polyfed.run` (`scheme: given`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from polyfed.data.arrays import Ints
from polyfed.errors import InputError

CLIENT, SPLIT = "client", "split"  # columns: the number of the client, and 'train' or 'test'


def by_given(columns: Mapping[str, npt.NDArray[Any]], clients: int) -> tuple[list[Ints], list[Ints] | None]:
    """Return the samples of each client, and its test samples. These are None if no client brought any."""
    if CLIENT not in columns:
        raise InputError(
            "data.partition.scheme is 'given', but the data has no owners; pass polyfed.run a list with one dataset "
            "per client"
        )
    owners = np.asarray(columns[CLIENT])
    count = len(np.unique(owners))
    if count != clients:
        raise InputError(
            f"clients is {clients}, but {count} clients brought data; remove clients or set it to {count}"
        )
    samples = [np.flatnonzero(owners == str(k)).astype(np.int64) for k in range(clients)]
    if SPLIT not in columns:
        return samples, None
    is_test = np.asarray(columns[SPLIT]) == "test"
    return [own[~is_test[own]] for own in samples], [own[is_test[own]] for own in samples]
