"""Low-rank compression: every matrix is sent as its leading singular vectors, chosen by energy."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from polyfed.core.payload import Payload, Value, Weights
from polyfed.errors import PayloadError
from polyfed.training.precision import double


def compress(weights: Mapping[str, Tensor], energy: float) -> dict[str, Value]:
    """Return the factors of every matrix and convolution if they are smaller than the tensor, else the tensor."""
    return {name: _factors(tensor, energy) or tensor for name, tensor in weights.items()}


def apply_update(weights: Weights, update: Value) -> Weights:
    """Return the weights plus a compressed update; raise PayloadError if names or shapes differ."""
    if not isinstance(update, Mapping) or update.keys() != weights.keys():
        raise PayloadError("a compressed update must have the same names as the weights")
    return {name: tensor + _dense(name, update[name], tensor) for name, tensor in weights.items()}


def rank_for(singular: Tensor, energy: float) -> int:
    """Return the smallest r with sum_{i <= r} sigma_i^2 >= energy * sum_i sigma_i^2; 0 only if all are 0."""
    energies = singular.double().square().cumsum(0)
    if not len(energies) or energies[-1] == 0:
        return 0
    return int((energies < energy * energies[-1]).sum()) + 1


def _factors(tensor: Tensor, energy: float) -> dict[str, Value] | None:
    """Return U, sigma and V of a matrix at the rank for `energy`; None if they are not smaller than the matrix."""
    if tensor.ndim not in (2, 4) or not tensor.is_floating_point():  # vectors are not compressed
        return None
    matrix = tensor.reshape(len(tensor), -1)  # a convolution [o, i, a, b] as o x (i a b)
    m, n = matrix.shape
    left, singular, right = torch.linalg.svd(double(matrix), full_matrices=False)
    r = rank_for(singular, energy)
    if r * (m + n + 1) >= m * n:
        return None
    parts = {"left": left[:, :r], "singular": singular[:r], "right": right[:r]}
    return {part: values.to(tensor.dtype).contiguous() for part, values in parts.items()}


def _dense(name: str, part: Value, like: Tensor) -> Tensor:
    """Return the full tensor of a possibly compressed update."""
    if isinstance(part, Tensor) and part.shape == like.shape:
        return part
    if isinstance(part, Mapping) and part.keys() == {"left", "singular", "right"} and like.ndim in (2, 4):
        left, singular, right = (Payload(part).tensor(factor) for factor in ("left", "singular", "right"))
        m, r = len(like), singular.numel()
        if left.shape == (m, r) and singular.ndim == 1 and right.shape == (r, math.prod(like.shape[1:])):
            return ((left * singular) @ right).reshape(like.shape)  # sigma scales the columns of U
    raise PayloadError(f"the update of '{name}' does not fit its shape {tuple(like.shape)}")
