"""Normal distributions of classes: mean and covariance, pooling over clients, and sampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from polyfed.training.precision import double


@dataclass(frozen=True)
class Gaussian:
    """The statistics of one class. The covariance is (d, d), or (d,) for its diagonal."""

    count: int
    mean: Tensor
    covariance: Tensor


def describe(vectors: Tensor, *, diagonal: bool = False, biased: bool = False) -> Gaussian:
    """Return count, mean and covariance of vectors (n, d). The divisor is n - 1, or n if `biased`; a single vector
    has covariance 0.
    """
    count, values = len(vectors), double(vectors)
    mean = values.mean(0)
    centred = values - mean
    scatter = centred.square().sum(0) if diagonal else centred.T @ centred
    return Gaussian(count, mean, scatter / max(1, count if biased else count - 1))


def pooled(parts: Sequence[Gaussian]) -> Gaussian:
    """Return mean and covariance of the union from the statistics of its parts.

    Sigma = sum (n_k - 1)/(N - 1) Sigma_k + sum n_k/(N - 1) mu_k mu_k^T - N/(N - 1) mu mu^T. The last two terms are
    computed as one sum around mu, which avoids cancellation.
    """
    count = sum(part.count for part in parts)
    mean = sum((part.count * part.mean.double() for part in parts), torch.zeros(())) / count
    scatter = torch.zeros(())
    for part in parts:
        shift = part.mean.double() - mean
        between = torch.outer(shift, shift) if part.covariance.ndim == 2 else shift.square()
        scatter = scatter + (part.count - 1) * part.covariance.double() + part.count * between
    return Gaussian(count, mean, scatter / max(1, count - 1))


def sample(gaussian: Gaussian, count: int, *, ridge: float, stream: torch.Generator) -> Tensor:
    """Sample vectors (count, d) from the distribution, with `ridge` added to every variance.

    Uses eigenvectors, with negative eigenvalues set to 0: the covariance of fewer vectors than dimensions is
    singular.
    """
    covariance, mean = double(gaussian.covariance), double(gaussian.mean)
    noise = torch.randn(count, len(mean), generator=stream, dtype=torch.float64).to(mean.device)
    if covariance.ndim == 1:
        deviation = noise * (covariance + ridge).clamp(min=0).sqrt()
    else:
        values, directions = torch.linalg.eigh(covariance)
        deviation = (noise * (values + ridge).clamp(min=0).sqrt()) @ directions.T
    return (mean + deviation).float().to(gaussian.mean.device)
