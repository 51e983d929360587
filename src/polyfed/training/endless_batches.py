"""Endless batches of a few samples, for training together with a pass over others."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


def cycled(inputs: Tensor, targets: Tensor, size: int, shuffle: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of pairs without end, reshuffled after each pass."""
    if not len(inputs):
        raise ValueError("there are no samples to cycle through")
    while True:
        for at in torch.split(torch.randperm(len(inputs), generator=shuffle), size):
            yield inputs[at], targets[at]
