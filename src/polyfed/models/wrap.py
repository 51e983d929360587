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
    linears = [name for name, part in module.named_modules() if name and isinstance(part, nn.Linear)]
    parts = dict(module.named_modules())
    if not head or head not in parts:
        raise InputError(f"{kind} has no part '{head}' that could be its head: {nearest(head, linears)}.")
    if not isinstance(parts[head], nn.Linear):
        raise InputError(
            f"The head '{head}' of {kind} is a {type(parts[head]).__name__}, a Linear is needed: "
            f"{nearest(head, linears)}."
        )
    backbone = copy.deepcopy(module)
    layer = backbone.get_submodule(head)
    assert isinstance(layer, nn.Linear)
    if layer.out_features != classes:
        raise InputError(
            f"The head '{head}' of {kind} has {layer.out_features} outputs, but the data has {classes} classes."
        )
    owner, _, attribute = head.rpartition(".")
    setattr(backbone.get_submodule(owner), attribute, nn.Identity())
    model = SplitModel(backbone, layer, feature_dim=layer.in_features, classes=classes)
    _check_cut(module, model, head, shape)
    return model


def _check_cut(module: nn.Module, model: SplitModel, head: str, shape: tuple[int, int, int]) -> None:
    """One forward pass of both: the cut is right where the two halves together give what the whole gives."""
    kind = type(module).__name__
    device = next(module.parameters()).device
    # A ramp rather than zeros, which could hide what comes after the head.
    probe = torch.linspace(0, 1, 2 * shape[0] * shape[1] * shape[2], device=device).reshape(2, *shape)
    whole = _evaluated(copy.deepcopy(module), probe, kind, shape)
    features = _evaluated(copy.deepcopy(model.backbone), probe, kind, shape)
    if features.shape != (2, model.feature_dim):
        raise InputError(
            f"{kind} without its head '{head}' gives {tuple(features.shape)} for two images, "
            f"(2, {model.feature_dim}) is needed: one flat feature for each image."
        )
    with torch.no_grad():
        joined = model.head(features)
    same = whole.shape == joined.shape and (whole.is_meta or torch.allclose(whole, joined, rtol=1e-4, atol=1e-5))
    if not same:
        raise InputError(
            f"{kind} does more after its head '{head}', so it cannot be cut there: the head must come last "
            "and give logits, without a softmax."
        )


def _evaluated(copied: nn.Module, probe: Tensor, kind: str, shape: tuple[int, int, int]) -> Tensor:
    try:
        with torch.no_grad():
            out = copied.eval()(probe)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{kind} does not take images of shape {tuple(shape)}: {reason}.") from error
    if not isinstance(out, Tensor):
        raise InputError(f"{kind} gives a {type(out).__name__}, a tensor of logits is needed.")
    return out
