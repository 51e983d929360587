"""Going round a few samples without end, beside a pass over others."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


def cycled(inputs: Tensor, targets: Tensor, size: int, shuffle: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of pairs without end, in a new order each time round."""
    if not len(inputs):
        raise ValueError("there is nothing to go round")
    while True:
        for at in torch.split(torch.randperm(len(inputs), generator=shuffle), size):
            yield inputs[at], targets[at]
