"""Losses that several methods use."""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of the values where the mask is true; exactly 0, without gradient, if the mask is all false."""
    return (values * mask).sum() / mask.sum().clamp(min=1)


def kl_divergence(
    target: Tensor,
    logits: Tensor,
    *,
    temperature: float = 1.0,
    reduction: Literal["batchmean", "mean"] = "batchmean",
) -> Tensor:
    """Return T^2 KL(softmax(target / T) || softmax(logits / T)), summed over classes, averaged over the batch.

    `target` holds logits; detach them if no gradient should reach the teacher. `reduction="mean"` also divides by the
    number of classes, as several libraries do with PyTorch's default.
    """
    p, q = (target / temperature).log_softmax(1), (logits / temperature).log_softmax(1)
    divergence = F.kl_div(q, p, reduction="batchmean", log_target=True) * temperature**2
    return divergence / logits.shape[1] if reduction == "mean" else divergence
