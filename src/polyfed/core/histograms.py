"""Histograms of the entries of an update."""

from __future__ import annotations

import torch
from torch import Tensor

BINS = 50


def edges_for(*values: Tensor) -> Tensor:
    """Return the edges of equal bins from minus to plus the largest magnitude, so that zero is an edge."""
    largest = max((float(value.abs().max()) for value in values if value.numel()), default=0.0)
    return torch.linspace(-1, 1, BINS + 1, dtype=torch.float64) * (largest or 1.0)


def counts(values: Tensor, edges: Tensor) -> Tensor:
    """Count the entries in every bin. An entry on an edge belongs to the bin on its right, on the last edge to the
    last bin.
    """
    histogram = torch.histogram(values.detach().double().flatten().cpu(), edges)
    return histogram.hist.to(torch.int64)
