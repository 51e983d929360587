"""The projection of a received layer into a layer of another shape (Eq. 7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from polyfed.methods.fedfree.overlap import crop, overlap_shape

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
