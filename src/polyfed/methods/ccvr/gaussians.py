"""Classes as normal distributions: their means and covariances, pooled over parties, and samples drawn from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Gaussian:
    """One class, at one party or over all; the covariance is (d, d), or (d,) where only its diagonal is kept."""

    count: int
    mean: Tensor
    covariance: Tensor


def describe(vectors: Tensor, *, diagonal: bool = False, biased: bool = False) -> Gaussian:
    """Count, mean and covariance of vectors (n, d): divisor n - 1, or n where `biased`; 0 for a single vector."""
    count, values = len(vectors), vectors.double()
    mean = values.mean(0)
    centred = values - mean
    scatter = centred.square().sum(0) if diagonal else centred.T @ centred
    return Gaussian(count, mean, scatter / max(1, count if biased else count - 1))


def pooled(parts: Sequence[Gaussian]) -> Gaussian:
    """Mean and covariance of the union, from those of its parts.

    Sigma = sum (n_k - 1)/(N - 1) Sigma_k + sum n_k/(N - 1) mu_k mu_k^T - N/(N - 1) mu mu^T; the last two are written
    as one sum about mu, which does not subtract large numbers from each other.
    """
    count = sum(part.count for part in parts)
    mean = sum((part.count * part.mean.double() for part in parts), torch.zeros(())) / count
    scatter = torch.zeros(())
    for part in parts:
        shift = part.mean.double() - mean
        between = torch.outer(shift, shift) if part.covariance.ndim == 2 else shift.square()
        scatter = scatter + (part.count - 1) * part.covariance.double() + part.count * between
    return Gaussian(count, mean, scatter / max(1, count - 1))


def draw(gaussian: Gaussian, count: int, *, ridge: float, stream: torch.Generator) -> Tensor:
    """Vectors (count, d) of the distribution with `ridge` added to every variance.

    By eigenvectors, with negative eigenvalues taken as 0: a covariance of fewer vectors than dimensions is singular.
    """
    noise = torch.randn(count, len(gaussian.mean), generator=stream, dtype=torch.float64)
    covariance, mean = gaussian.covariance.double(), gaussian.mean.double()
    if covariance.ndim == 1:
        spread = noise * (covariance + ridge).clamp(min=0).sqrt()
    else:
        values, directions = torch.linalg.eigh(covariance)
        spread = (noise * (values + ridge).clamp(min=0).sqrt()) @ directions.T
    return (mean + spread).float()
