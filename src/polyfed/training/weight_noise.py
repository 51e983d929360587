"""Gaussian noise on uploads, to study how robust a method is to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor


def noisy(
    after: Mapping[str, Tensor],
    before: Mapping[str, Tensor],
    names: Iterable[str],
    level: float,
    stream: torch.Generator,
) -> dict[str, Tensor]:
    """Return `after` with Gaussian noise on the named tensors, of `level` standard deviations of each update."""
    result = dict(after)
    for name in names:
        deviation = (after[name] - before[name]).std(correction=0)
        noise = torch.randn(after[name].shape, generator=stream, dtype=after[name].dtype).to(after[name].device)
        result[name] = after[name] + level * deviation * noise
    return result
