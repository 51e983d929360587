"""Training at the server on class tables: every row is one sample of its class."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from polyfed.core.class_tables import ClassTable
from polyfed.training import Fit, Loss, Samples, TrainSettings, fit
from polyfed.training.random_draws import Draw


class Rows(Samples):
    """Samples that are vectors instead of images. Batches are not rescaled."""

    def batches(
        self, size: int, *, shuffle: torch.Generator | None = None, drop_single: bool = False
    ) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.arange(len(self)) if shuffle is None else torch.randperm(len(self), generator=shuffle)
        order = order.to(self.labels.device, non_blocking=True)
        for indices in torch.split(order, size):
            if len(indices) > (1 if drop_single else 0):
                yield self.inputs[indices], self.labels[indices]


def fit_rows(
    modules: Iterable[nn.Module],
    loss: Loss,
    tables: Sequence[ClassTable],
    settings: TrainSettings,
    shuffle: torch.Generator,
    draw: Draw | None = None,
) -> Fit:
    """Train modules on all rows of all tables in shuffled batches. Do nothing if there are no rows."""
    if not any(len(table) for table in tables):
        return Fit(0, 0, float("nan"))
    vectors = torch.cat([table.values for table in tables])
    labels = torch.cat([table.classes for table in tables])
    return fit(modules, loss, Rows(vectors, labels), settings, shuffle, draw=draw)
