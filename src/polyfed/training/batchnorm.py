"""BatchNorm statistics: recompute them, use those of the batch, or leave them unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from polyfed.training.samples import Samples


@torch.no_grad()
def recalibrate(model: nn.Module, samples: Samples, batch: int, *, shuffle: torch.Generator | None = None) -> None:
    """Recompute all running statistics as means over one pass; fewer than two samples change nothing."""
    norms = _norms(model)
    if not norms or len(samples) < 2:
        return
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
    model.train()
    for number, (x, _) in enumerate(samples.batches(max(2, batch), shuffle=shuffle, drop_single=True), 1):
        for norm in norms:
            norm.momentum = 1.0 / number  # a plain mean over batches; momentum None would read a counter each time
        model(x)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum


@torch.no_grad()
def by_batch_statistics(model: nn.Module, x: Tensor) -> Tensor:
    """Return the model's output when BatchNorm uses the statistics of this batch; running statistics do not change.

    A single sample is duplicated, which changes neither its mean nor its (biased) variance.
    """
    with _batch_statistics(model):
        output: Tensor = model(x if len(x) > 1 else torch.cat([x, x]))
    return output[: len(x)]


@contextmanager
def frozen_statistics(module: nn.Module) -> Iterator[None]:
    """Freeze running statistics: a norm in training mode uses the batch and stores nothing."""
    norms = _norms(module)
    stored = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum = 0.0  # running statistics do not change
        norm.num_batches_tracked = None
    try:
        yield
    finally:
        for norm, (momentum, counter) in zip(norms, stored, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, counter


@contextmanager
def _batch_statistics(model: nn.Module) -> Iterator[None]:
    modes = [(norm, norm.training) for norm in _norms(model)]
    for norm, _ in modes:
        norm.train()
    try:
        with frozen_statistics(model):
            yield
    finally:
        for norm, mode in modes:
            norm.train(mode)


def _norms(model: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    return [part for part in model.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
