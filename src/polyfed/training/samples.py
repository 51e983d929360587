"""Samples: uint8 images with labels, in batches of floats in [0, 1]."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK = 1024  # samples that are converted to floats at a time
EVALUATION_BATCH = 512  # large batches are fastest, and without gradients they need little memory


@dataclass(frozen=True)
class Samples:
    """Images (uint8, N x C x H x W) with their labels (int64)."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, indices: Tensor) -> Samples:
        return Samples(self.images[indices], self.labels[indices])

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
        # Many batches are converted at once and yielded as views: a conversion per batch is slower.
        chunk = max(1, CHUNK // size) * size
        for start in range(0, count, chunk):
            stop = min(start + chunk, count)
            at = None if order is None else order[start:stop]
            images = as_floats(self.images[start:stop] if at is None else self.images.index_select(0, at))
            labels = self.labels[start:stop] if at is None else self.labels.index_select(0, at)
            yield from zip(torch.split(images, size), torch.split(labels, size), strict=True)


def as_floats(images: Tensor) -> Tensor:
    """Return pixels in [0, 1] in channels-last layout, which is fastest for convolutions on CPU."""
    floats = images.to(torch.float32, memory_format=torch.channels_last) if images.ndim == 4 else images.float()
    return floats.mul_(1 / 255)
