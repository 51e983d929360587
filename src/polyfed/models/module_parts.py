"""Modules, tensors and mode of a PyTorch module, without the names of its parts, which take most of the time."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn


def modules_of(module: nn.Module) -> list[nn.Module]:
    """Return a module and all modules inside it once, in the order of `nn.Module.modules`."""
    found: dict[nn.Module, None] = {}
    _collect(module, found)
    return list(found)


def _collect(module: nn.Module, found: dict[nn.Module, None]) -> None:
    if _has_own(module, "named_modules"):
        found |= dict.fromkeys(part for _, part in module.named_modules())
        return
    found[module] = None
    for child in module._modules.values():
        if child is not None and child not in found:
            _collect(child, found)


def parameters_of(modules: Iterable[nn.Module]) -> list[nn.Parameter]:
    """Return the parameters that modules have themselves, once, in the order of `nn.Module.parameters`."""
    parameters = (parameter for module in modules for parameter in module._parameters.values())
    return list(dict.fromkeys(parameter for parameter in parameters if parameter is not None))


def tensors_of(modules: Iterable[nn.Module]) -> list[Tensor]:
    """Return the parameters and buffers that modules have themselves."""
    return [
        tensor
        for module in modules
        for tensor in (*module._parameters.values(), *module._buffers.values())
        if tensor is not None
    ]


def set_mode(module: nn.Module, *, training: bool) -> None:
    """Set a module and all modules inside it to training or evaluation mode, as `nn.Module.train` does.

    The mode is written directly, because setting an attribute of a module is slow. A module with a `train` of its own
    may keep another mode.
    """
    if _has_own(module, "train") or _has_own(module, "children") or "training" not in module.__dict__:
        module.train(training)
        return
    module.__dict__["training"] = training
    for child in module._modules.values():
        if child is not None:
            set_mode(child, training=training)


def _has_own(module: nn.Module, method: str) -> bool:
    """Return whether a module or its class replaces a method of `nn.Module`."""
    return method in module.__dict__ or getattr(type(module), method) is not getattr(nn.Module, method)
