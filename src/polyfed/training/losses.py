"""Losses that several methods share."""

from __future__ import annotations

from torch import Tensor


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """The mean of the values where the mask is true; exactly 0, with no gradient, where it nowhere is (R6)."""
    return (values * mask).sum() / mask.sum().clamp(min=1)


def soft_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Per sample, the cross-entropy of softmax(logits) against a target distribution."""
    return -(target * logits.log_softmax(1)).sum(1)
