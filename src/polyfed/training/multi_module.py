"""Tools for training steps with more than one module: clip each gradient, freeze a module."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from torch import nn


def clip_each(norm: float | None, *modules: nn.Module) -> Callable[[], None]:
    """Return an `adjust` function that clips the gradient norm of each module separately.

    With one norm over all modules, the gradient of one model would shorten the step of another.
    """

    def clip() -> None:
        if norm is not None:
            for module in modules:
                nn.utils.clip_grad_norm_(module.parameters(), norm)

    return clip


@contextlib.contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """Freeze a module inside the context: evaluation mode and no gradients; restore it afterwards."""
    modes = [(part, part.training) for part in module.modules()]
    flags = [(p, p.requires_grad) for p in module.parameters()]
    module.eval().requires_grad_(False)
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode
        for parameter, flag in flags:
            parameter.requires_grad_(flag)
