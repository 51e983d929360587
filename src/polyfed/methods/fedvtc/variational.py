"""Parts of training a decoder by a variational bound: its divergence, its noise, and one deviation per coordinate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

SMALLEST, LARGEST = 1e-3, 10.0  # of a standard deviation


class Deviation(nn.Module):
    """Standard deviations, learned as logarithms: no step can make one negative, and a mean over clients is above 0.

    Bounds are kept by projection: after a step that leads past one, the next look at it is at the bound.
    """

    def __init__(self, sigma: Tensor) -> None:
        super().__init__()
        self.log = nn.Parameter(sigma.detach().clamp(SMALLEST, LARGEST).log())

    def forward(self) -> Tensor:
        with torch.no_grad():
            self.log.clamp_(math.log(SMALLEST), math.log(LARGEST))
        return self.log.exp()


def reparameterised(z: Tensor, sigma: Tensor, stream: torch.Generator) -> Tensor:
    """v = z + sigma eps with eps ~ N(0, I): a draw that gradients pass through."""
    return z + sigma * torch.randn(z.shape, generator=stream, dtype=z.dtype)


def divergence(squared_distance: Tensor, sigma: Tensor) -> Tensor:
    """KL(N(z, diag sigma^2) || N(c, I)) of every sample, from its |z - c|^2."""
    spread = sigma.square().sum() - sigma.numel() - 2 * sigma.log().sum()  # log |Sigma| as a sum, not a determinant
    return (squared_distance + spread) / 2


def sum_of_class_means(values: Tensor, labels: Tensor, counts: Tensor | None = None) -> Tensor:
    """The sum over classes of the mean of their values.

    Over the classes and samples of this batch; or, with the number of samples of every class in all data, an
    estimate of that sum over all data: right on average over batches.
    """
    if counts is None:
        return (values / labels.bincount()[labels]).sum()
    return (values * counts.sum() / counts[labels]).mean()


@dataclass(frozen=True)
class Bound:
    """How far decoded images are from the images, and features from the centre of their class (FedVTC, 3 to 6)."""

    decoder: nn.Module
    deviation: Deviation
    centres: Tensor  # (classes, width)
    pulled: Tensor  # (classes,) bool: whether features of the class are compared with its centre
    counts: Tensor | None  # samples of every class, where class means are to be those of all data
    matching: float  # lambda
    reduction: Literal["mean_pixels", "sum", "mean_each"]

    def loss(self, x: Tensor, y: Tensor, z: Tensor, sigma: Tensor, made: Tensor, again: Tensor | None) -> Tensor:
        """L_tc = L_e + lambda L_dm for images x, features z, decoded images x' and their features, if wanted."""
        c, pulled = self.centres[y], self.pulled[y]
        pixels, width = x[0].numel(), z.shape[1]
        rebuilt = (made - x).square().sum((1, 2, 3))  # (4) |x' - x|^2
        apart = divergence((z - c).square().sum(1) * pulled, sigma)  # (3) KL
        matched = (again - c).square().sum(1) * pulled if again is not None else torch.zeros_like(apart)  # (5)
        if self.reduction == "mean_each":
            rebuilt, apart, matched = rebuilt / pixels, apart / width, matched / width
        total = sum_of_class_means(rebuilt + apart + self.matching * matched, y, self.counts)  # (6)
        return total / pixels if self.reduction == "mean_pixels" else total
