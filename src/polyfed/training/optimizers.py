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


def _trained_parameters(self: Optimizer) -> list[tuple[dict[str, Any], list[Any]]] | None:
    """Return each group with its parameters that have a gradient, or None if a group has several types of them.

    The fused kernels take one type.
    """
    groups = [(g, [parameter for parameter in g["params"] if parameter.grad is not None]) for g in self.param_groups]
    return None if any(len({parameter.dtype for parameter in trained}) > 1 for _, trained in groups) else groups


class SGD(_without_compiler(torch.optim.SGD)):  # type: ignore[misc]
    """SGD that calls the fused kernel at once where there is no momentum."""

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        groups = _trained_parameters(self)
        plain = all(group["fused"] and not group["momentum"] for group in self.param_groups)
        if closure is not None or groups is None or not plain or _has_hooks(self):
            return super().step(closure)
        with torch.no_grad():
            for group, trained in groups:
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


class Adam(_without_compiler(torch.optim.Adam)):  # type: ignore[misc]
    """Adam that calls the fused kernel at once. The first step of a parameter is torch's, which creates its state."""

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        groups = _trained_parameters(self)
        plain = all(group["fused"] and not group["amsgrad"] for group in self.param_groups)
        if closure is not None or groups is None or not plain or _has_hooks(self):
            return super().step(closure)
        if not all(self.state[parameter] for _, trained in groups for parameter in trained):
            return super().step()
        with torch.no_grad():
            for group, trained in groups:
                if trained:
                    states = [self.state[parameter] for parameter in trained]
                    steps = [state["step"] for state in states]
                    torch._foreach_add_(steps, 1)
                    torch._fused_adam_(
                        trained,
                        [parameter.grad for parameter in trained],
                        [state["exp_avg"] for state in states],
                        [state["exp_avg_sq"] for state in states],
                        [],
                        steps,
                        amsgrad=False,
                        lr=group["lr"],
                        beta1=group["betas"][0],
                        beta2=group["betas"][1],
                        weight_decay=group["weight_decay"],
                        eps=group["eps"],
                        maximize=group["maximize"],
                    )
        return None

    step.hooked = True  # type: ignore[attr-defined]
