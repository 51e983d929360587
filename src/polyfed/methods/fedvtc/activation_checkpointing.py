"""Activation checkpointing: lower peak memory for one more forward pass."""

from __future__ import annotations

import contextlib

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from polyfed.training.batchnorm import frozen_statistics


def checkpointed(module: nn.Module, x: Tensor) -> Tensor:
    """Return `module(x)`, and compute its activations again in the backward pass instead of storing them.

    BatchNorm updates its running statistics in the first pass only. Dropout uses the same mask in both passes.
    """
    y: Tensor = checkpoint(
        module,
        x,
        use_reentrant=False,
        preserve_rng_state=_may_draw(module),
        context_fn=lambda: (contextlib.nullcontext(), frozen_statistics(module)),
    )
    return y


def _may_draw(module: nn.Module) -> bool:
    """Return whether a module may use random numbers. To save their state waits for a device."""
    parts = [type(part) for part in module.modules()]
    known = all(part.__module__.startswith(("torch.nn.", "polyfed.")) for part in parts)
    return not known or any(issubclass(part, nn.modules.dropout._DropoutNd) for part in parts)
