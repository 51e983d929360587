"""Samples of any shape with their labels, in batches as models take them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK = 1024  # samples that are converted to floats at a time
EVALUATION_BATCH = 512  # large batches are fastest, and without gradients they need little memory


@dataclass(frozen=True)
class Samples:
    """Inputs (N x ...) with their labels (int64). The type says what inputs are: see `model_inputs`.

    Batches are on the device of the labels. Inputs are there as well, or on the CPU if they do not fit.
    """

    inputs: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, indices: Tensor) -> Samples:
        return Samples(self.inputs[indices.to(self.inputs.device)], self.labels[indices.to(self.labels.device)])

    def select(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return one batch: the samples with these indices."""
        chosen = self.subset(indices)
        return model_inputs(chosen.inputs.to(chosen.labels.device)), chosen.labels

    def batches(
        self, size: int, *, shuffle: torch.Generator | None = None, drop_single: bool = False
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches in stored order, or shuffled with a generator.

        The last, smaller batch is included. `drop_single` leaves out a last batch of one sample, on which BatchNorm
        cannot be trained.
        """
        n = len(self)
        count = n - 1 if drop_single and n % size == 1 else n
        order = None if shuffle is None else torch.randperm(n, generator=shuffle)
        if self.labels.device.type != "cpu":
            yield from self._batches_on_device(size, count, order)
            return
        # Many batches are converted at once and yielded as views: a conversion per batch is slower.
        chunk = max(1, CHUNK // size) * size
        for start in range(0, count, chunk):
            stop = min(start + chunk, count)
            at = None if order is None else order[start:stop]
            inputs = model_inputs(self.inputs[start:stop] if at is None else self.inputs.index_select(0, at))
            labels = self.labels[start:stop] if at is None else self.labels.index_select(0, at)
            yield from zip(torch.split(inputs, size), torch.split(labels, size), strict=True)

    def _batches_on_device(self, size: int, count: int, order: Tensor | None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches on a device. The order is copied once; inputs that stay on the CPU are copied in chunks."""
        device = self.labels.device
        on_device = None if order is None else order.to(device, non_blocking=True)
        resident = self.inputs.device == device
        chunk = size if resident else max(1, CHUNK // size) * size
        for start in range(0, count, chunk):
            stop = min(start + chunk, count)
            host = on_device if resident else order
            inputs = self.inputs[start:stop] if host is None else self.inputs.index_select(0, host[start:stop])
            inputs = model_inputs(inputs.to(device, non_blocking=True))
            at = None if on_device is None else on_device[start:stop]
            labels = self.labels[start:stop] if at is None else self.labels.index_select(0, at)
            yield from zip(torch.split(inputs, size), torch.split(labels, size), strict=True)


def model_inputs(inputs: Tensor) -> Tensor:
    """Return inputs as models take them: uint8 pixels as floats in [0, 1], floats and tokens unchanged.

    Pictures are in channels-last layout, which is fastest for convolutions on CPU.
    """
    if inputs.dtype == torch.uint8:
        floats = inputs.to(torch.float32, memory_format=torch.channels_last) if inputs.ndim == 4 else inputs.float()
        return floats.mul_(1 / 255)
    return inputs.contiguous(memory_format=torch.channels_last) if inputs.ndim == 4 else inputs
