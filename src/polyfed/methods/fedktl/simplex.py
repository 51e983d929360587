"""Classification against a fixed simplex of directions, and the way from there to latents of a generator."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BANDWIDTHS = (10.0, 15.0, 20.0, 50.0)
COSINE_LIMIT = 1 - 1e-6  # the arc cosine has an infinite slope at 1


def simplex_etf(classes: int, stream: torch.Generator) -> Tensor:
    """One unit direction per class, as rows: every two have the cosine -1 / (classes - 1), turned at random.

    V = sqrt(C / (C - 1)) P (I - 11^T / C) with P orthonormal. In double precision, so that P is.
    """
    basis, _ = torch.linalg.qr(torch.randn(classes, classes, generator=stream, dtype=torch.float64))
    centred = torch.eye(classes, dtype=torch.float64) - 1 / classes
    frame = math.sqrt(classes / (classes - 1)) * basis @ centred
    return F.normalize(frame.T, dim=1).float()


def arcface(cosines: Tensor, labels: Tensor, *, margin: float, scale: float) -> Tensor:
    """Logits in which the angle to the right class is enlarged by `margin`.

    Where that would pass the straight angle, and the cosine would rise again, a constant is taken off instead.
    """
    own = cosines.gather(1, labels[:, None]).clamp(-COSINE_LIMIT, COSINE_LIMIT)
    wider = torch.cos(torch.acos(own) + margin)
    guarded = torch.where(own > math.cos(math.pi - margin), wider, own - margin * math.sin(margin))
    return scale * cosines.scatter(1, labels[:, None], guarded)


def mmd(x: Tensor, y: Tensor, bandwidths: tuple[float, ...] = BANDWIDTHS) -> Tensor:
    """The squared maximum mean discrepancy of two samples, summed over kernels exp(-distance^2 / (2 a))."""

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        squared = (a.square().sum(1)[:, None] + b.square().sum(1)[None] - 2 * a @ b.T).clamp(min=0)
        return torch.stack([torch.exp(-squared / (2 * width)) for width in bandwidths]).sum(0).mean()

    return kernel(x, x) + kernel(y, y) - 2 * kernel(x, y)


def feature_transformer(classes: int, latent_width: int) -> nn.Sequential:
    """From directions near a simplex to latents: linear, BatchNorm, ReLU, linear."""
    hidden = nn.Linear(classes, classes)
    return nn.Sequential(hidden, nn.BatchNorm1d(classes), nn.ReLU(), nn.Linear(classes, latent_width))
