"""Evaluation: large batches, no gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from polyfed.training.samples import EVALUATION_BATCH, Samples


@dataclass(frozen=True)
class Score:
    """Number of correctly classified samples out of `total`."""

    correct: int
    total: int

    @property
    def accuracy(self) -> float:
        return self.correct / self.total if self.total else float("nan")


@torch.no_grad()
def score(predict: Callable[[Tensor], Tensor], samples: Samples) -> Score:
    """Count correct predictions; `predict` returns one score per class, and the largest is the prediction."""
    counts = [(predict(x).argmax(1) == y).sum() for x, y in samples.batches(EVALUATION_BATCH)]
    return Score(int(torch.stack(counts).sum()) if counts else 0, len(samples))  # read once: that waits for a device
