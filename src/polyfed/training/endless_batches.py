"""Endless batches of a few samples, for training together with a pass over others."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor


def cycled(
    inputs: Tensor, targets: Tensor, size: int, shuffle: torch.Generator, ahead: int = 1
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of pairs without end, reshuffled after each pass.

    On a device, the order of `ahead` batches is drawn and copied at a time. Nothing else may use `shuffle` then.
    """
    if not len(inputs):
        raise ValueError("there are no samples to cycle through")
    passes = 1 if inputs.device.type == "cpu" else max(1, -(-ahead * size // len(inputs)))
    while True:
        orders = torch.stack([torch.randperm(len(inputs), generator=shuffle) for _ in range(passes)])
        for order in orders.to(inputs.device, non_blocking=True):
            for at in torch.split(order, size):
                yield inputs[at], targets[at]


def started(batches: Iterator[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Return the same batches, with the first one drawn: what a device needs for it is copied now."""
    return itertools.chain([next(batches)], batches)
