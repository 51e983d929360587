"""The part of linear CKA that one model gives: how alike it finds every two of some samples."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def centred_gram(features: Tensor) -> Tensor:
    """H X X^T H of features X [n, d], in double precision: what of X enters linear CKA, whatever d is."""
    x = features.double()
    x = x - x.mean(0, keepdim=True)
    return x @ x.T


def signature(features: Tensor) -> Tensor:
    """A vector of n (n + 1) / 2 numbers whose inner product with another model's is their linear CKA.

    The centred Gram matrix at length 1; it is symmetric, so that what is off its diagonal stands once, times sqrt(2).
    Zeros for features that are the same for all samples: they resemble nothing.
    """
    gram = centred_gram(features)
    length = gram.norm()
    if not bool(length > 0):
        gram, length = torch.zeros_like(gram), torch.ones_like(length)
    rows, columns = torch.triu_indices(*gram.shape)
    weight = torch.where(rows == columns, 1.0, math.sqrt(2.0)).to(gram.dtype)
    vector: Tensor = gram[rows, columns] * weight / length
    return vector.float()
