"""The projection of a received layer into a layer of another shape (Eq. 7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from polyfed.core.payload import Value, Weights
from polyfed.errors import PayloadError
from polyfed.methods.fedfree.layers import KINDS, Layer, find_layers
from polyfed.methods.fedfree.overlap import crop, overlap_shape

TENSORS = ("weight", "bias")
Projection = Literal["flat", "block"]
Remainder = Literal["retain", "zero"]


def project(own: Tensor, received: Tensor, how: Projection = "flat", remainder: Remainder = "retain") -> Tensor:
    """Return `own` with its values replaced by received ones.

    `flat` replaces the first values in row-major order, `block` those where both tensors overlap. `remainder` says
    whether the other values are kept or set to zero.
    """
    result = own.clone(memory_format=torch.contiguous_format)
    if remainder == "zero":
        result.zero_()
    if how == "flat":
        size = min(own.numel(), received.numel())
        result.view(-1)[:size] = received.reshape(-1)[:size]
    else:
        common = overlap_shape(own.shape, received.shape)
        crop(result, common).copy_(crop(received, common))
    return result


def trim(tensor: Tensor, target: Sequence[int], how: Projection = "flat") -> Tensor:
    """Return the values of a tensor that `project` uses for a layer of the shape `target`."""
    if how == "flat":
        return tensor.reshape(-1)[: torch.Size(target).numel()]
    return crop(tensor, overlap_shape(tensor.shape, target))


def exchanged_values(received: Tensor, own: Tensor, how: Projection) -> tuple[Tensor, Tensor]:
    """Return the values of both layers that an exchange would affect."""
    return trim(received, own.shape, how), trim(own, received.shape, how)


def sent_tensors(source: Layer, own: Layer, trimmed: Projection | None) -> dict[str, Value]:
    """Return the tensors of a global layer, or with `trimmed` only the values that fit into the client's layer."""
    if trimmed is None:
        return dict(zip(TENSORS, source.tensors, strict=False))
    pairs = zip(TENSORS, source.tensors, own.tensors, strict=False)
    return {name: trim(tensor, target.shape, trimmed) for name, tensor, target in pairs}


def insert_layer(model: nn.Module, name: str, received: Weights, how: Projection, remainder: Remainder) -> None:
    """Copy received tensors into the layer of a client's model with this name (Eq. 7)."""
    layer = next((layer for layer in find_layers(model, KINDS) if layer.name == name), None)
    if layer is None:
        raise PayloadError(f"field 'layer' is '{name}', but this client's model has no such layer")
    for own, key in zip(layer.tensors, TENSORS, strict=False):
        if key in received:  # a bias that only one of the layers has is kept
            own.copy_(project(own, received[key], how, remainder))
