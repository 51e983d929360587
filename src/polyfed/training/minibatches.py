"""Shuffled batches of row numbers, for training on vectors that are already in memory."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


def minibatches(rows: int, size: int, shuffle: torch.Generator, *, drop_single: bool = False) -> Iterator[Tensor]:
    """The numbers 0 .. rows - 1 in an order drawn from `shuffle`, at most `size` at a time.

    `drop_single` leaves out a last batch of one, which BatchNorm cannot be trained on.
    """
    for batch in torch.randperm(rows, generator=shuffle).split(size):
        if len(batch) > 1 or not drop_single:
            yield batch
