"""Losses that several methods share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """The mean of the values where the mask is true; exactly 0, with no gradient, where it nowhere is (R6)."""
    return (values * mask).sum() / mask.sum().clamp(min=1)


def soft_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Per sample, the cross-entropy of softmax(logits) against a target distribution."""
    return -(target * logits.log_softmax(1)).sum(1)


def kl_divergence(
    target: Tensor,
    logits: Tensor,
    *,
    temperature: float = 1.0,
    reduction: Literal["batchmean", "mean"] = "batchmean",
) -> Tensor:
    """T^2 KL(softmax(target / T) || softmax(logits / T)), summed over classes, mean over the batch (R5).

    `target` holds logits; detach them where they teach only. `mean` divides by the number of classes as well, which
    several libraries do by leaving PyTorch's default.
    """
    p, q = (target / temperature).log_softmax(1), (logits / temperature).log_softmax(1)
    apart = F.kl_div(q, p, reduction="batchmean", log_target=True) * temperature**2
    return apart / logits.shape[1] if reduction == "mean" else apart


def squared_distance(parameters: Iterable[Tensor], anchors: Iterable[Tensor]) -> Tensor:
    """The sum over tensors of ||p - a||^2: the proximal term without its weight."""
    return torch.stack([(p - a).square().sum() for p, a in zip(parameters, anchors, strict=True)]).sum()
