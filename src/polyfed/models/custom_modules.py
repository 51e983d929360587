"""Custom models: turn any module and the name of its last layer into a SplitModel."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from polyfed.errors import InputError, nearest
from polyfed.models.spec import Shape
from polyfed.models.split import SplitModel


def from_module(
    module: nn.Module,
    head: str,
    *,
    shape: Shape,
    classes: int,
    vocabulary: int | None = None,
    check: bool = True,
) -> SplitModel:
    """Split a copy of `module` at its head, which must be its last layer and a Linear. `head` is its (dotted) name.

    The module receives images as floats in [0, 1] and other inputs unchanged. It normalises them itself if needed.
    With `check`, the module is run on two samples to make sure that it computes nothing after its head.
    """
    kind = type(module).__name__
    if not isinstance(module, nn.Module):
        raise InputError(f"The model is a {kind}; expected a torch.nn.Module.")
    parts = {name: part for name, part in module.named_modules() if name}
    linears = [name for name, part in parts.items() if isinstance(part, nn.Linear)]
    if head not in parts:
        raise InputError(f"{kind} has no part '{head}' that could be its head; {nearest(head, linears)}.")
    layer = parts[head]
    if not isinstance(layer, nn.Linear):
        raise InputError(
            f"The head '{head}' of {kind} is a {type(layer).__name__}, a Linear is needed; {nearest(head, linears)}."
        )
    if layer.out_features != classes:
        raise InputError(
            f"The head '{head}' of {kind} has {layer.out_features} outputs, but the data has {classes} classes."
        )
    if check:
        _check_split(module, layer, head, _example(shape, vocabulary, layer.weight.device))
    return SplitModel(
        _without_head(module, head), copy.deepcopy(layer), feature_dim=layer.in_features, classes=classes
    )


def _without_head(module: nn.Module, head: str) -> nn.Module:
    """Return a copy of the module with an identity in place of its head."""
    backbone = copy.deepcopy(module)
    owner, _, attribute = head.rpartition(".")
    setattr(backbone.get_submodule(owner), attribute, nn.Identity())
    return backbone


def _example(shape: Shape, vocabulary: int | None, device: torch.device) -> Tensor:
    """Return two example samples: a ramp, because zeros could hide operations after the head."""
    count = 2 * math.prod(shape)
    if vocabulary is not None:
        return (torch.arange(count, device=device) % vocabulary).reshape(2, *shape)
    return torch.linspace(0, 1, count, device=device).reshape(2, *shape)


def _check_split(module: nn.Module, layer: nn.Linear, head: str, probe: Tensor) -> None:
    """Raise InputError unless backbone and head together compute the same as the module."""
    kind = type(module).__name__
    whole = _evaluate(copy.deepcopy(module), probe, kind)
    features = _evaluate(_without_head(module, head), probe, kind)
    if features.shape != (2, layer.in_features):
        raise InputError(
            f"{kind} without its head '{head}' returns shape {tuple(features.shape)} for two samples; "
            f"expected (2, {layer.in_features}), one flat feature vector per sample."
        )
    with torch.no_grad():
        recombined = layer(features)
    same = whole.shape == recombined.shape and (
        whole.is_meta or torch.allclose(whole, recombined, rtol=1e-4, atol=1e-5)
    )
    if not same:
        raise InputError(
            f"{kind} does more after its head '{head}', so it cannot be cut there: the head must come last "
            "and give logits, without a softmax."
        )


def _evaluate(module: nn.Module, probe: Tensor, kind: str) -> Tensor:
    """Return the module's output in evaluation mode."""
    try:
        with torch.no_grad():
            out = module.eval()(probe)
    except Exception as error:  # the module is the user's: it may raise anything
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{kind} does not take samples of shape {tuple(probe.shape[1:])}: {reason}.") from error
    if not isinstance(out, Tensor):
        raise InputError(
            f"{kind} returns a {type(out).__name__}; return only the logits, a tensor of shape (samples, classes)."
        )
    return out
