"""The loss L_tc of FedVTC (Eq. 6), and the standard deviations that it trains together with the decoder."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from polyfed.methods.fedvtc.activation_checkpointing import checkpointed

MIN_DEVIATION, MAX_DEVIATION = 1e-3, 10.0


class StandardDeviation(nn.Module):
    """A vector of standard deviations, stored as logarithms so that they stay positive.

    Values are clamped to [MIN_DEVIATION, MAX_DEVIATION] whenever they are read.
    """

    def __init__(self, sigma: Tensor) -> None:
        super().__init__()
        self.log = nn.Parameter(sigma.detach().clamp(MIN_DEVIATION, MAX_DEVIATION).log())

    def forward(self) -> Tensor:
        with torch.no_grad():
            self.log.clamp_(math.log(MIN_DEVIATION), math.log(MAX_DEVIATION))
        return self.log.exp()


def reparameterise(z: Tensor, sigma: Tensor, noise: Tensor) -> Tensor:
    """Return v = z + sigma eps for noise eps ~ N(0, I). Gradients flow to z and sigma."""
    return z + sigma * noise


def kl_divergence(squared_distance: Tensor, sigma: Tensor) -> Tensor:
    """Return KL(N(z, diag sigma^2) || N(c, I)) for each sample, given its |z - c|^2 (Eq. 3)."""
    # log |Sigma| is a sum of logarithms: the determinant itself would underflow
    variance_term = sigma.square().sum() - sigma.numel() - 2 * sigma.log().sum()
    return (squared_distance + variance_term) / 2


def class_means(values: Tensor, labels: Tensor) -> Tensor:
    """Return the mean of the values of each class that the batch contains."""
    counts = labels.bincount()
    totals = torch.zeros(len(counts), dtype=values.dtype).index_add(0, labels, values)
    return totals[counts > 0] / counts[counts > 0]


def reduce_over_classes(values: Tensor, labels: Tensor, classes: int, reduction: Literal["mean", "sum"]) -> Tensor:
    """Return the sum, or the mean, of the class means over the classes that the batch contains."""
    if values.device.type == "cpu":
        by_class = class_means(values, labels)
        return by_class.sum() if reduction == "sum" else by_class.mean()
    # the number of classes in the batch is known on the device only: classes that are not in it add zeros
    counts = values.new_zeros(classes).index_add(0, labels, torch.ones_like(values))
    total = (values.new_zeros(classes).index_add(0, labels, values) / counts.clamp(min=1)).sum()
    return total if reduction == "sum" else total / (counts > 0).sum()


@dataclass(frozen=True)
class LossWeights:
    """Weights of the terms of L_tc, and their reduction over pixels and classes. The defaults are the paper's."""

    matching: float  # lambda
    reconstruction: float = 1.0
    alignment: float = 1.0
    noise: float = 1.0  # standard deviation of the prior of v around its features
    reduction: Literal["mean", "sum"] = "sum"


@dataclass(frozen=True)
class VariationalBound:
    """L_tc of one client (Eq. 3 to 6), with the decoder and the standard deviations that it trains."""

    decoder: nn.Module
    deviation: StandardDeviation
    prototypes: Tensor  # (classes, width)
    regularised: Tensor  # (classes,) bool: classes whose features are pulled to their prototype
    weights: LossWeights
    recompute: bool = False  # whether forward passes use activation checkpointing

    def decode(self, z: Tensor, sigma: Tensor, noise: Tensor) -> Tensor:
        """Return x' = psi(v) for a latent v drawn around the features."""
        return self.forward(self.decoder, reparameterise(z, sigma, noise))

    def forward(self, module: nn.Module, x: Tensor) -> Tensor:
        """Return `module(x)`, with activation checkpointing if `recompute` is set."""
        output: Tensor = checkpointed(module, x) if self.recompute else module(x)
        return output

    def loss(
        self, x: Tensor, y: Tensor, z: Tensor, sigma: Tensor, decoded: Tensor, re_encoded: Tensor | None
    ) -> Tensor:
        """Return L_tc = L_e + lambda L_dm for a batch.

        `z` are the features of the images `x`, `decoded` are the decoder's images x', and `re_encoded` are the
        features of x'. Without `re_encoded` the loss is L_e.
        """
        c, regularised, weights = self.prototypes[y], self.regularised[y], self.weights
        reconstruction = (decoded - x).square().sum((1, 2, 3))  # |x' - x|^2 of Eq. 4
        distance = (z - c).square().sum(1) * regularised
        divergence = kl_divergence(weights.alignment * distance, sigma / weights.noise)  # Eq. 3
        total = weights.reconstruction * reconstruction + divergence
        if re_encoded is not None:
            total = total + weights.matching * (re_encoded - c).square().sum(1) * regularised  # Eq. 5
        reduced = reduce_over_classes(total, y, len(self.prototypes), weights.reduction)  # Eq. 6
        return reduced if weights.reduction == "sum" else reduced / x[0].numel()
