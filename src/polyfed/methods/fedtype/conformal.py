"""Conformal sets by RAPS: sets of labels that hold the right one with a chosen probability, and are small.

Angelopoulos, Bates, Malik, Jordan; Uncertainty sets for image classifiers using conformal prediction, ICLR 2021.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

HOTTEST = 20.0  # temperatures are looked for between 1 / HOTTEST and HOTTEST


@dataclass(frozen=True)
class Conformal:
    """A calibrated rule from logits to sets of labels."""

    temperature: float
    penalty: float  # lambda, on every rank beyond `free_ranks`
    free_ranks: int  # k_reg
    threshold: float = math.inf

    def scores(self, logits: Tensor, stream: torch.Generator) -> Tensor:
        """For every label: the probability before it, a random part of its own, and the penalty of its rank."""
        p, order = (logits / self.temperature).softmax(1).sort(dim=1, descending=True, stable=True)
        ranks = torch.arange(1, p.shape[1] + 1)
        penalties = self.penalty * (ranks - self.free_ranks).clamp(min=0)
        part = torch.rand(len(p), 1, generator=stream)
        by_rank = p.cumsum(1) - p + part * p + penalties
        return torch.empty_like(by_rank).scatter(1, order, by_rank)

    def sets(self, logits: Tensor, stream: torch.Generator) -> Tensor:
        """Which labels are in the set of each sample (N, C). The most probable always is, so no set is empty."""
        inside = self.scores(logits, stream) <= self.threshold
        return inside.scatter(1, logits.argmax(1, keepdim=True), True)


def calibrated(
    logits: Tensor, labels: Tensor, *, coverage: float, penalty: float, free_ranks: int, stream: torch.Generator
) -> Conformal:
    """The rule whose sets hold the right label with probability `coverage`, for samples like those given.

    With too few samples to promise that, every label is in every set.
    """
    rule = Conformal(fitted_temperature(logits, labels), penalty, min(free_ranks, logits.shape[1] - 1))
    own = rule.scores(logits, stream).gather(1, labels[:, None])[:, 0]
    rank = math.ceil((len(own) + 1) * coverage)  # the upper quantile for samples that are finite in number
    threshold = math.inf if rank > len(own) else float(own.sort().values[rank - 1])
    return Conformal(rule.temperature, rule.penalty, rule.free_ranks, threshold)


def fitted_temperature(logits: Tensor, labels: Tensor) -> float:
    """The temperature T at which the labels are most probable under softmax(logits / T).

    The loss is convex in 1 / T, so its slope there, the mean of E[z] - z_y, tells on which side of it to look.
    """
    low, high = 1 / HOTTEST, HOTTEST
    own = logits.gather(1, labels[:, None])[:, 0]
    for _ in range(24):
        middle = math.sqrt(low * high)
        slope = (((logits * middle).softmax(1) * logits).sum(1) - own).mean()
        low, high = (middle, high) if float(slope) < 0 else (low, middle)
    return 1 / math.sqrt(low * high)


def consensus(own: Tensor, others: Tensor) -> Tensor:
    """How far two sets agree, per sample: intersection over union, or over `others` alone where `own` is larger."""
    shared = (own & others).sum(1)
    sizes, other_sizes = own.sum(1), others.sum(1)
    return shared / torch.where(sizes <= other_sizes, (own | others).sum(1), other_sizes)


def ranking_loss(logits: Tensor, preferred: Tensor, margin: float) -> Tensor:
    """Per sample, the mean of relu(margin + z_j - z_i) over pairs of i in the preferred set and j outside it."""
    pairs = preferred[:, :, None] & ~preferred[:, None, :]
    excess = (margin + logits[:, None, :] - logits[:, :, None]).relu()  # [n, i, j]
    return (excess * pairs).sum((1, 2)) / pairs.sum((1, 2)).clamp(min=1)
