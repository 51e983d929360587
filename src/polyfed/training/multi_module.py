"""For training steps in which more than one module takes part."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from torch import nn


def clip_each(norm: float | None, *modules: nn.Module) -> Callable[[], None]:
    """Brings the gradient of each module to at most `norm` by itself, as `adjust` of a fit.

    One norm over all would let the gradient of one model shorten the step of another.
    """

    def clip() -> None:
        if norm is not None:
            for module in modules:
                nn.utils.clip_grad_norm_(module.parameters(), norm)

    return clip


@contextlib.contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """Inside, the module takes part but does not learn: evaluation mode, no gradients; then as it was before."""
    modes = [(part, part.training) for part in module.modules()]
    wanted = [(p, p.requires_grad) for p in module.parameters()]
    module.eval().requires_grad_(False)
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode
        for parameter, gradient in wanted:
            parameter.requires_grad_(gradient)
