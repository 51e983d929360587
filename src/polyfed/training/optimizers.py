"""SGD and Adam without torch's compiler, and with few instructions per step.

The optimisers of torch import `torch._dynamo` when they are first used. That takes about two seconds in every
process, and polyfed compiles nothing. They also record every step for torch's profiler and sort all parameters by
type and device, which takes longer than the step of a small model. These subclasses run the same steps, bit for bit,
without both. Torch's way is taken where hooks are registered.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.optim import Optimizer, optimizer

AnyOptimizer = TypeVar("AnyOptimizer", bound=Optimizer)
_WRAPPED = ("add_param_group", "state_dict", "load_state_dict")  # torch wraps them with the import


def _zero_grad(self: Optimizer, set_to_none: bool = True) -> None:
    for group in self.param_groups:
        for parameter in group["params"]:
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.detach_().zero_()


def _has_hooks(self: Optimizer) -> bool:
    of_all = optimizer._global_optimizer_pre_hooks or optimizer._global_optimizer_post_hooks
    return bool(of_all or self._optimizer_step_pre_hooks or self._optimizer_step_post_hooks)


def _without_compiler(base: type[AnyOptimizer]) -> type[AnyOptimizer]:
    """Return a subclass whose methods are the ones below torch's wrappers."""
    plain_step: Callable[..., Any] = inspect.unwrap(base.step)

    def without_hooks(self: Optimizer, closure: Callable[[], float] | None = None) -> Any:
        with torch.no_grad():  # the wrapper does this unless the optimiser is differentiable
            return plain_step(self, closure)

    with_hooks = Optimizer.profile_hook_step(without_hooks)

    def step(self: Optimizer, closure: Callable[[], float] | None = None) -> Any:
        return with_hooks(self, closure) if _has_hooks(self) else without_hooks(self, closure)

    step.hooked = True  # type: ignore[attr-defined]  # torch wraps steps without this mark for its profiler
    methods: dict[str, Any] = {name: inspect.unwrap(getattr(base, name)) for name in _WRAPPED}
    methods |= {"step": step, "zero_grad": _zero_grad, "__doc__": base.__doc__}
    return type(base.__name__, (base,), methods)


class SGD(_without_compiler(torch.optim.SGD)):  # type: ignore[misc]
    """SGD that calls the fused kernel at once where there is no momentum."""

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        groups = self.param_groups
        if closure is not None or _has_hooks(self) or any(g["momentum"] or not g["fused"] for g in groups):
            return super().step(closure)
        with torch.no_grad():
            for group in groups:
                trained = [parameter for parameter in group["params"] if parameter.grad is not None]
                kinds = {parameter.dtype for parameter in trained}
                if len(kinds) > 1:  # the kernel takes one type
                    return super().step()
                if trained:
                    torch._fused_sgd_(
                        trained,
                        [parameter.grad for parameter in trained],
                        [],
                        weight_decay=group["weight_decay"],
                        momentum=0.0,
                        lr=group["lr"],
                        dampening=group["dampening"],
                        nesterov=group["nesterov"],
                        maximize=group["maximize"],
                        is_first_step=False,
                    )
        return None

    step.hooked = True  # type: ignore[attr-defined]


Adam = _without_compiler(torch.optim.Adam)
