"""One Gaussian per class, with a covariance of low rank plus a diagonal, as one row of a class table.

A row holds the mean, the variances and `rank` factors: the leading principal directions, each scaled by the standard
deviation along it. The covariance that a row stands for is `factors.T @ factors`, with the diagonal filled up to the
variances.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from polyfed.core import ClassTable
from polyfed.training.precision import double


def row_width(features: int, rank: int) -> int:
    """Return how many numbers a row holds."""
    return features * (2 + rank)


def describe_classes(vectors: Tensor, labels: Tensor, rank: int, min_count: int) -> ClassTable:
    """Return one row for every class with at least `min_count` of the vectors (n, features), with counts."""
    classes, counts = torch.unique(labels, return_counts=True)
    sent = counts >= max(1, min_count)
    rows = [_described(double(vectors[labels == c]), rank) for c in classes[sent]]
    values = torch.stack(rows) if rows else vectors.new_zeros(0, row_width(vectors.shape[1], rank))
    return ClassTable(classes[sent], values, counts[sent])


def pool_classes(tables: Sequence[ClassTable], features: int, rank: int) -> ClassTable:
    """Return the statistics of the union of all clients' samples, class by class."""
    pooled = {}
    for c in sorted({c for table in tables for c in table.classes.tolist()}):
        held = [(table.row(c), table.count(c)) for table in tables]
        rows, counts = zip(*((row, count) for row, count in held if row is not None), strict=True)
        values = torch.stack(rows).double()
        pooled[c] = _pooled(values, torch.tensor(counts).double().to(values.device), features, rank)
    return ClassTable.of(pooled, row_width(features, rank))


def sample_class(row: Tensor, features: int, count: int, noise: float, stream: torch.Generator) -> Tensor:
    """Draw `count` vectors from the Gaussian of a row, with `noise` squared added to every variance."""
    mean, variance, factors = _parts(row, features)
    remainder = (variance - factors.square().sum(0)).clamp(min=0) + noise**2
    common = torch.randn(count, len(factors), generator=stream).to(row.device) @ factors
    return mean + common + remainder.sqrt() * torch.randn(count, features, generator=stream).to(row.device)


def _described(vectors: Tensor, rank: int) -> Tensor:
    centred = vectors - vectors.mean(0)
    return _row(vectors.mean(0), centred.square().mean(0), centred / len(vectors) ** 0.5, rank)


def _pooled(rows: Tensor, counts: Tensor, features: int, rank: int) -> Tensor:
    """Total covariance = mean covariance within clients + covariance of the clients' means."""
    means, variances, factors = _parts(rows, features)
    share = counts / counts.sum()
    mean = share @ means
    shifts = means - mean
    variance = share @ (variances + shifts.square())
    roots = share.sqrt()[:, None, None] * torch.cat([factors, shifts[:, None]], 1)
    return _row(mean, variance, roots.flatten(0, 1), rank)


def _row(mean: Tensor, variance: Tensor, roots: Tensor, rank: int) -> Tensor:
    """Return a row from the mean, the variances and any matrix with `roots.T @ roots` close to the covariance."""
    _, singular, directions = torch.linalg.svd(roots, full_matrices=False)
    factors = mean.new_zeros(rank, len(mean))
    kept = min(rank, len(singular))
    factors[:kept] = singular[:kept, None] * directions[:kept]
    return torch.cat([mean, variance, factors.flatten()]).float()


def _parts(rows: Tensor, features: int) -> tuple[Tensor, Tensor, Tensor]:
    """Split rows into mean, variances (..., features) and factors (..., rank, features)."""
    parts = rows.reshape(*rows.shape[:-1], -1, features)
    return parts[..., 0, :], parts[..., 1, :], parts[..., 2:, :]
