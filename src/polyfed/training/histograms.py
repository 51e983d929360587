"""How the entries of an update are spread."""

from __future__ import annotations

import torch
from torch import Tensor

BINS = 50


def edges_for(*values: Tensor) -> Tensor:
    """Bounds of equal bins from minus to plus the largest magnitude, so that zero is a bound."""
    largest = max((float(value.abs().max()) for value in values if value.numel()), default=0.0)
    return torch.linspace(-1, 1, BINS + 1, dtype=torch.float64) * (largest or 1.0)


def counts(values: Tensor, edges: Tensor) -> Tensor:
    """How many entries lie between every two bounds; one on a bound counts to its right, on the last to its left."""
    found = torch.histogram(values.detach().double().flatten().cpu(), edges)
    return found.hist.to(torch.int64)
