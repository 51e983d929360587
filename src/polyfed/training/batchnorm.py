"""BatchNorm statistics taken anew, for when weights were changed from outside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from polyfed.training.samples import Samples


@torch.no_grad()
def recalibrate(model: nn.Module, samples: Samples, batch: int, *, shuffle: torch.Generator | None = None) -> None:
    """Replace all running statistics by their means over one pass of the samples; fewer than two change nothing."""
    norms = _norms(model)
    if not norms or len(samples) < 2:
        return
    kept = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain mean over batches
    model.train()
    for x, _ in samples.batches(max(2, batch), shuffle=shuffle, drop_single=True):
        model(x)
    for norm, momentum in zip(norms, kept, strict=True):
        norm.momentum = momentum


@torch.no_grad()
def by_batch_statistics(model: nn.Module, x: Tensor) -> Tensor:
    """What the model answers with the statistics of this very batch; its own stay as they are.

    A single sample is doubled, which changes neither its mean nor its (biased) variance.
    """
    with _normalising_by_batch(model):
        answer: Tensor = model(x if len(x) > 1 else torch.cat([x, x]))
    return answer[: len(x)]


@contextmanager
def statistics_kept(module: nn.Module) -> Iterator[None]:
    """Inside, no norm notes what it sees: one in training mode normalises by the batch and remembers nothing."""
    norms = _norms(module)
    kept = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum = 0.0  # of the running statistics, all stays
        norm.num_batches_tracked = None
    try:
        yield
    finally:
        for norm, (momentum, counter) in zip(norms, kept, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, counter


@contextmanager
def _normalising_by_batch(model: nn.Module) -> Iterator[None]:
    modes = [(norm, norm.training) for norm in _norms(model)]
    for norm, _ in modes:
        norm.train()
    try:
        with statistics_kept(model):
            yield
    finally:
        for norm, mode in modes:
            norm.train(mode)


def _norms(model: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    return [part for part in model.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
