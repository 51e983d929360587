"""Conformal prediction sets (RAPS): small sets of labels that have the true label with a chosen probability.

Angelopoulos, Bates, Malik, Jordan; Uncertainty sets for image classifiers using conformal prediction, ICLR 2021.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

MAX_TEMPERATURE = 20.0  # the fitted temperature is between 1 / MAX_TEMPERATURE and MAX_TEMPERATURE


@dataclass(frozen=True)
class Conformal:
    """A calibrated rule from logits to sets of labels."""

    temperature: float
    penalty: float  # lambda, on every rank beyond `free_ranks`
    free_ranks: int  # k_reg
    threshold: float = math.inf

    def scores(self, logits: Tensor, fraction: Tensor) -> Tensor:
        """Return for every label the total probability before it, a random part of its own, and its penalty.

        `fraction` holds one uniform random number per sample (N, 1).
        """
        p, order = (logits / self.temperature).softmax(1).sort(dim=1, descending=True, stable=True)
        ranks = torch.arange(1, p.shape[1] + 1, device=p.device)
        penalties = self.penalty * (ranks - self.free_ranks).clamp(min=0)
        by_rank = p.cumsum(1) - p + fraction * p + penalties
        return torch.empty_like(by_rank).scatter(1, order, by_rank)

    def sets(self, logits: Tensor, fraction: Tensor) -> Tensor:
        """Return which labels are in the set of each sample (N, C). The most probable label always is."""
        inside = self.scores(logits, fraction) <= self.threshold
        return inside.scatter(1, logits.argmax(1, keepdim=True), True)


def fractions(count: int, stream: torch.Generator) -> Tensor:
    """Draw the random part of the score of every sample (count, 1)."""
    return torch.rand(count, 1, generator=stream)


def calibrated(
    logits: Tensor, labels: Tensor, *, coverage: float, penalty: float, free_ranks: int, stream: torch.Generator
) -> Conformal:
    """Return the rule whose sets have the true label with probability `coverage`, for samples of the same
    distribution.

    With too few samples for that guarantee, every set has every label.
    """
    rule = Conformal(fitted_temperature(logits, labels), penalty, min(free_ranks, logits.shape[1] - 1))
    own = rule.scores(logits, fractions(len(logits), stream).to(logits.device)).gather(1, labels[:, None])[:, 0]
    rank = math.ceil((len(own) + 1) * coverage)  # quantile with finite-sample correction
    threshold = math.inf if rank > len(own) else float(own.sort().values[rank - 1])
    return Conformal(rule.temperature, rule.penalty, rule.free_ranks, threshold)


def fitted_temperature(logits: Tensor, labels: Tensor) -> float:
    """Return the temperature T that maximises the likelihood of the labels under softmax(logits / T).

    The loss is convex in 1 / T, so the sign of its slope, the mean of E[z] - z_y, gives the direction of the
    bisection.
    """
    low, high = 1 / MAX_TEMPERATURE, MAX_TEMPERATURE
    own = logits.gather(1, labels[:, None])[:, 0]
    for _ in range(24):
        middle = math.sqrt(low * high)
        slope = (((logits * middle).softmax(1) * logits).sum(1) - own).mean()
        low, high = (middle, high) if float(slope) < 0 else (low, middle)
    return 1 / math.sqrt(low * high)


def consensus(own: Tensor, others: Tensor) -> Tensor:
    """Return the agreement of two sets per sample: intersection over union, or over `others` if `own` is larger."""
    shared = (own & others).sum(1)
    sizes, other_sizes = own.sum(1), others.sum(1)
    return shared / torch.where(sizes <= other_sizes, (own | others).sum(1), other_sizes)


def ranking_loss(logits: Tensor, preferred: Tensor, margin: float) -> Tensor:
    """Return, per sample, the mean of relu(margin + z_j - z_i) over pairs of i in the preferred set and j outside."""
    pairs = preferred[:, :, None] & ~preferred[:, None, :]
    excess = (margin + logits[:, None, :] - logits[:, :, None]).relu()  # [n, i, j]
    return (excess * pairs).sum((1, 2)) / pairs.sum((1, 2)).clamp(min=1)
