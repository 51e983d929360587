"""Noise on what a client sends, for studies of how much of it a method stands."""

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
    """`after`, with Gaussian noise on the named tensors: `level` standard deviations of each tensor's change."""
    sent = dict(after)
    for name in names:
        spread = (after[name] - before[name]).std(correction=0)
        noise = torch.randn(after[name].shape, generator=stream, dtype=after[name].dtype)
        sent[name] = after[name] + level * spread * noise
    return sent
