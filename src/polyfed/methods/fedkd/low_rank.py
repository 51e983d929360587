"""Weights in fewer numbers: every matrix by the few singular vectors that hold most of its energy."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from polyfed.core.payload import Payload, Value, Weights
from polyfed.errors import PayloadError


def compressed(weights: Mapping[str, Tensor], energy: float) -> dict[str, Value]:
    """Every matrix and convolution by its factors, where these are fewer numbers than it has; the rest as it is."""
    return {name: _factors(tensor, energy) or tensor for name, tensor in weights.items()}


def added(weights: Weights, update: Value) -> Weights:
    """`weights` with a compressed update on top; an update of other names or shapes is refused."""
    if not isinstance(update, Mapping) or update.keys() != weights.keys():
        raise PayloadError("a compressed update must hold the same names as the weights that it is added to")
    return {name: tensor + _dense(name, update[name], tensor) for name, tensor in weights.items()}


def rank_for(singular: Tensor, energy: float) -> int:
    """The smallest r with sum_{i <= r} sigma_i^2 >= energy * sum_i sigma_i^2; 0 only where all are 0."""
    held = singular.double().square().cumsum(0)
    if not len(held) or held[-1] == 0:
        return 0
    return int((held < energy * held[-1]).sum()) + 1


def _factors(tensor: Tensor, energy: float) -> dict[str, Value] | None:
    """U, sigma and V of a matrix at the rank that `energy` asks for, unless sending it whole is no more."""
    if tensor.ndim not in (2, 4) or not tensor.is_floating_point():  # vectors and embeddings travel whole
        return None
    matrix = tensor.reshape(len(tensor), -1)  # a convolution [o, i, a, b] as o x (i a b)
    m, n = matrix.shape
    left, singular, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    r = rank_for(singular, energy)
    if r * (m + n + 1) >= m * n:
        return None
    parts = {"left": left[:, :r], "singular": singular[:r], "right": right[:r]}
    return {part: values.to(tensor.dtype).contiguous() for part, values in parts.items()}


def _dense(name: str, part: Value, like: Tensor) -> Tensor:
    if isinstance(part, Tensor) and part.shape == like.shape:
        return part
    if isinstance(part, Mapping) and part.keys() == {"left", "singular", "right"} and like.ndim in (2, 4):
        left, singular, right = (Payload(part).tensor(factor) for factor in ("left", "singular", "right"))
        m, r = len(like), singular.numel()
        if left.shape == (m, r) and singular.ndim == 1 and right.shape == (r, math.prod(like.shape[1:])):
            return ((left * singular) @ right).reshape(like.shape)  # sigma scales the columns of U
    raise PayloadError(f"the update of '{name}' does not fit its shape {tuple(like.shape)}")
