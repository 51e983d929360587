"""The part of linear CKA that depends on one model: the centred Gram matrix of its features."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def centred_gram(features: Tensor) -> Tensor:
    """Return H X X^T H of features X [n, d] in double precision: the part of X that linear CKA depends on."""
    x = features.double()
    x = x - x.mean(0, keepdim=True)
    return x @ x.T


def signature(features: Tensor) -> Tensor:
    """Return a vector of n (n + 1) / 2 entries whose inner product with another model's vector is their linear CKA.

    It is the normalised centred Gram matrix. The matrix is symmetric, so entries off the diagonal are stored once,
    times sqrt(2). If all samples have equal features, the vector is zero.
    """
    gram = centred_gram(features)
    length = gram.norm()
    if not bool(length > 0):
        gram, length = torch.zeros_like(gram), torch.ones_like(length)
    rows, columns = torch.triu_indices(*gram.shape, device=gram.device)
    weight = torch.where(rows == columns, 1.0, math.sqrt(2.0)).to(gram.dtype)
    vector: Tensor = gram[rows, columns] * weight / length
    return vector.float()
