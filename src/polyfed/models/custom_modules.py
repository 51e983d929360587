"""Bring your own: any module and the name of its head become a SplitModel."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from polyfed.errors import InputError, nearest
from polyfed.models.split import SplitModel


def from_module(module: nn.Module, head: str, *, shape: tuple[int, int, int], classes: int) -> SplitModel:
    """Cuts a copy of `module` at its head, a Linear that comes last; `head` is its (dotted) name.

    The module gets images in [0, 1] and brings its own normalisation, if any.
    """
    kind = type(module).__name__
    if not isinstance(module, nn.Module):
        raise InputError(f"A model is needed, a torch.nn.Module, found {kind}.")
    parts = {name: part for name, part in module.named_modules() if name}
    linears = [name for name, part in parts.items() if isinstance(part, nn.Linear)]
    if head not in parts:
        raise InputError(f"{kind} has no part '{head}' that could be its head: {nearest(head, linears)}.")
    layer = parts[head]
    if not isinstance(layer, nn.Linear):
        raise InputError(
            f"The head '{head}' of {kind} is a {type(layer).__name__}, a Linear is needed: {nearest(head, linears)}."
        )
    if layer.out_features != classes:
        raise InputError(
            f"The head '{head}' of {kind} has {layer.out_features} outputs, but the data has {classes} classes."
        )
    _check_cut(module, layer, head, shape)
    return SplitModel(_without(module, head), copy.deepcopy(layer), feature_dim=layer.in_features, classes=classes)


def _without(module: nn.Module, head: str) -> nn.Module:
    """A copy whose head passes its input."""
    backbone = copy.deepcopy(module)
    owner, _, attribute = head.rpartition(".")
    setattr(backbone.get_submodule(owner), attribute, nn.Identity())
    return backbone


def _check_cut(module: nn.Module, layer: nn.Linear, head: str, shape: tuple[int, int, int]) -> None:
    """One forward pass of both: the cut is right where the two halves together give what the whole gives."""
    kind = type(module).__name__
    # A ramp rather than zeros, which could hide what comes after the head.
    probe = torch.linspace(0, 1, 2 * shape[0] * shape[1] * shape[2], device=layer.weight.device)
    probe = probe.reshape(2, *shape)
    whole = _evaluated(copy.deepcopy(module), probe, kind)
    features = _evaluated(_without(module, head), probe, kind)
    if features.shape != (2, layer.in_features):
        raise InputError(
            f"{kind} without its head '{head}' gives {tuple(features.shape)} for two images, "
            f"(2, {layer.in_features}) is needed: one flat feature for each image."
        )
    with torch.no_grad():
        joined = layer(features)
    same = whole.shape == joined.shape and (whole.is_meta or torch.allclose(whole, joined, rtol=1e-4, atol=1e-5))
    if not same:
        raise InputError(
            f"{kind} does more after its head '{head}', so it cannot be cut there: the head must come last "
            "and give logits, without a softmax."
        )


def _evaluated(copied: nn.Module, probe: Tensor, kind: str) -> Tensor:
    try:
        with torch.no_grad():
            out = copied.eval()(probe)
    except Exception as error:  # the module is the user's: it may raise anything
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{kind} does not take images of shape {tuple(probe.shape[1:])}: {reason}.") from error
    if not isinstance(out, Tensor):
        raise InputError(f"{kind} gives a {type(out).__name__}, a tensor of logits is needed.")
    return out
