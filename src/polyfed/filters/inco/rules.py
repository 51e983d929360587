"""The rules of InCo: how much of the shallow update is added to the deep one.

The theorem, the algorithm box and the released code of the paper are three different rules. They agree where the two
updates point in opposite directions (beta < 0).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

MIN_NORM = 1e-12  # updates with a smaller norm count as zero


class UpdatePair:
    """A deep and a shallow update with their inner products (Eq. 2), row by row.

    `epsilon` is added to denominators, as the released code does.
    """

    def __init__(self, deep: Tensor, shallow: Tensor, epsilon: float = 0.0) -> None:
        self.deep, self.shallow, self.epsilon = deep, shallow, epsilon
        self.alpha = (shallow * shallow).sum(1, keepdim=True)
        self.beta = (shallow * deep).sum(1, keepdim=True)
        self.shallow_norm, self.deep_norm = self.alpha.sqrt(), deep.norm(dim=1, keepdim=True)
        self.has_shallow, self.has_deep = self.shallow_norm >= MIN_NORM, self.deep_norm >= MIN_NORM

    def similarity(self, *, normalise: bool) -> Similarity:
        """Return beta / alpha of the updates, before and after optional normalisation."""
        both = self.has_shallow & self.has_deep
        raw = divide(self.beta, self.alpha + self.epsilon, both)
        return Similarity(divide(self.beta, self.shallow_norm * self.deep_norm, both) if normalise else raw, raw)

    def mixed(self, theta: Tensor) -> Tensor:
        """Return deep + theta * shallow, and the deep update bit for bit where nothing is added."""
        return torch.where(~self.has_shallow | (theta == 0), self.deep, self.deep + theta * self.shallow)

    def mixed_directions(self, theta: Tensor, max_entry: float | None) -> Tensor:
        """Mix the normalised updates and scale the result to the mean norm of both (Algorithm 1, line 9)."""
        mean_norm = (self.shallow_norm + self.deep_norm) / 2
        deep = divide(self.deep, self.deep_norm + self.epsilon, self.has_deep)
        shallow = divide(self.shallow, self.shallow_norm + self.epsilon, self.has_shallow)
        mixed = (deep + theta * shallow) * mean_norm
        if max_entry is not None:
            mixed = mixed.clamp(-max_entry, max_entry)
        return torch.where(~self.has_shallow, self.deep, mixed)


class Similarity(NamedTuple):
    """How far two updates point in the same direction, row by row."""

    theta: Tensor  # beta / alpha of the updates that are mixed: the cosine, if these are normalised
    raw: Tensor  # beta / alpha of the updates before normalisation


def released_code(similarity: Similarity, max_theta: float) -> Tensor:
    """Add |beta| / alpha of the raw updates, up to a limit, even if normalised updates are mixed."""
    return similarity.raw.abs().clamp(max=max_theta)


def absolute(similarity: Similarity, max_theta: float) -> Tensor:
    """Add |theta|: the released code without its limits, and with one normalisation throughout."""
    return similarity.theta.abs()


def theorem(similarity: Similarity, max_theta: float) -> Tensor:
    """Theorem 3.1: remove the conflict with the shallow update if there is one, otherwise change nothing."""
    return -similarity.theta.clamp(max=0)


def algorithm1(similarity: Similarity, max_theta: float) -> Tensor:
    """Algorithm 1: always remove the shallow direction."""
    return -similarity.theta


def plain_sum(similarity: Similarity, max_theta: float) -> Tensor:
    """Add the shallow update: the paper's ablation without optimisation."""
    return torch.ones_like(similarity.theta)


def off(similarity: Similarity, max_theta: float) -> Tensor:
    """Add nothing."""
    return torch.zeros_like(similarity.theta)


class Rule(NamedTuple):
    """A rule and what belongs to it in its source."""

    coefficient: Callable[[Similarity, float], Tensor]  # of the shallow update
    by_kernel: bool = False  # whether inner products are taken per convolution kernel by default
    limits_entries: bool = False  # whether entries of the normalised result are limited
    has_epsilon: bool = False  # whether denominators are increased by a small number


RULES: Mapping[str, Rule] = {
    "released": Rule(released_code, by_kernel=True, limits_entries=True, has_epsilon=True),
    "abs": Rule(absolute),
    "theorem": Rule(theorem),
    "algorithm1": Rule(algorithm1),
    "sum": Rule(plain_sum),
    "off": Rule(off),
}


def divide(value: Tensor, by: Tensor, where: Tensor) -> Tensor:
    """Divide where the condition holds, and return zero elsewhere."""
    return torch.where(where, value / torch.where(where, by, torch.ones_like(by)), torch.zeros_like(value))
