"""Classification by cosine similarity to a fixed simplex of directions, with an angular margin (ArcFace)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

MAX_COSINE = 1 - 1e-6  # the arc cosine has an infinite slope at 1


def simplex_etf(classes: int, generator: torch.Generator) -> Tensor:
    """Return one unit vector per class, as rows, that form a simplex equiangular tight frame in random orientation.

    V = sqrt(C / (C - 1)) P (I - 11^T / C) with P orthonormal. The cosine of any two vectors is -1 / (C - 1).
    """
    # double precision keeps P orthonormal
    basis, _ = torch.linalg.qr(torch.randn(classes, classes, generator=generator, dtype=torch.float64))
    centred = torch.eye(classes, dtype=torch.float64) - 1 / classes
    frame = math.sqrt(classes / (classes - 1)) * basis @ centred
    return F.normalize(frame.T, dim=1).float()


def arcface(cosines: Tensor, labels: Tensor, *, margin: float, scale: float) -> Tensor:
    """Return logits in which `margin` is added to the angle to the correct class.

    If the angle would exceed pi, where its cosine rises again, a constant is subtracted from the cosine instead.
    """
    own = cosines.gather(1, labels[:, None]).clamp(-MAX_COSINE, MAX_COSINE)
    with_margin = torch.cos(torch.acos(own) + margin)
    guarded = torch.where(own > math.cos(math.pi - margin), with_margin, own - margin * math.sin(margin))
    return scale * cosines.scatter(1, labels[:, None], guarded)
