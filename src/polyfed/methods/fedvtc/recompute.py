"""Less memory for more computing: what a module computed on the way is thrown away and made again for gradients."""

from __future__ import annotations

import contextlib

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from polyfed.training.batchnorm import statistics_kept


def recomputed(module: nn.Module, x: Tensor) -> Tensor:
    """module(x) with the same gradients, holding no activations until they are needed.

    Norms note what they see the first time only, and dropout draws the same again.
    """
    y: Tensor = checkpoint(
        module, x, use_reentrant=False, context_fn=lambda: (contextlib.nullcontext(), statistics_kept(module))
    )
    return y
