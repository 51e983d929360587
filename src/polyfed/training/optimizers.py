"""SGD and Adam without torch's compiler.

The optimisers of torch import `torch._dynamo` when they are first used. That takes about two seconds in every
process, and polyfed compiles nothing. These subclasses run the same steps, bit for bit, without the import.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.optim import Optimizer

AnyOptimizer = TypeVar("AnyOptimizer", bound=Optimizer)
_WRAPPED = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")  # torch wraps them with the import


def _without_compiler(base: type[AnyOptimizer]) -> type[AnyOptimizer]:
    """Return a subclass whose methods are the ones below torch's wrappers."""
    plain_step: Callable[..., Any] = inspect.unwrap(base.step)

    def step(self: Optimizer, closure: Callable[[], float] | None = None) -> Any:
        with torch.no_grad():  # the wrapper does this unless the optimiser is differentiable
            return plain_step(self, closure)

    methods: dict[str, Any] = {name: inspect.unwrap(getattr(base, name)) for name in _WRAPPED}
    return type(base.__name__, (base,), {**methods, "step": step, "__doc__": base.__doc__})


SGD = _without_compiler(torch.optim.SGD)
Adam = _without_compiler(torch.optim.Adam)
