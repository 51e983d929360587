"""Samples: images as bytes with their labels, walked over in batches of floats in [0, 1]."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK = 1024  # samples that are held as floats at a time
EVALUATION_BATCH = 512  # without gradients memory is no concern, and large batches are fastest


@dataclass(frozen=True)
class Samples:
    """Some images (uint8, N x C x H x W) with their labels (int64)."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, indices: Tensor) -> Samples:
        return Samples(self.images[indices], self.labels[indices])

    def batches(
        self, size: int, *, shuffle: torch.Generator | None = None, drop_single: bool = False
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches in stored order, or in an order drawn from `shuffle`.

        The last, smaller batch is kept (R7). `drop_single` leaves out a last batch of one sample, which
        BatchNorm cannot be trained on.
        """
        n = len(self)
        kept = n - 1 if drop_single and n % size == 1 else n
        order = None if shuffle is None else torch.randperm(n, generator=shuffle)
        # Many batches are converted at once and handed out as views: per batch that would cost more than it computes.
        chunk = max(1, CHUNK // size) * size
        for start in range(0, kept, chunk):
            stop = min(start + chunk, kept)
            at = None if order is None else order[start:stop]
            images = as_floats(self.images[start:stop] if at is None else self.images.index_select(0, at))
            labels = self.labels[start:stop] if at is None else self.labels.index_select(0, at)
            yield from zip(torch.split(images, size), torch.split(labels, size), strict=True)


def as_floats(images: Tensor) -> Tensor:
    """Pixels in [0, 1], laid out channels-last, which CPU convolutions are fastest on."""
    floats = images.to(torch.float32, memory_format=torch.channels_last) if images.ndim == 4 else images.float()
    return floats.mul_(1 / 255)
