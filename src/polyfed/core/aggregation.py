"""Aggregation rules: how the server combines the values of several clients into one (`aggregation` of the config).

Every rule works on a matrix with one row per client. NaN marks positions that a client does not hold. The plain mean
is a running sum and is computed elsewhere. `docs/robust.md` describes the rules.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

LEAST_HOLDERS = 3  # with fewer clients, no majority can outvote a wrong value
ITERATIONS = 200  # of the geometric median; each needs a product of a matrix (clients, clients) with a vector
SHARE_ROUNDING = 1e-9  # so that 0.2 of 15 clients are 3, not 4


@dataclass(frozen=True)
class Aggregation:
    """A rule and its options."""

    name: str = "mean"
    share: float = 0.2  # trimmed-mean: share of the values removed at each end; krum: share of clients that may lie
    norm: float | None = None  # norm-clipped: largest norm; None: the median over the clients of the round
    keep: int = 1  # krum: number of replies that are averaged

    @property
    def is_mean(self) -> bool:
        """Whether this is the plain weighted mean, which needs one reply at a time."""
        return self.name == "mean"

    @property
    def by_position(self) -> bool:
        """Whether every number is combined on its own, without regard to the rest of the replies."""
        return self.name in ("median", "trimmed-mean")

    @property
    def compares_replies(self) -> bool:
        """Whether the rule needs distances between replies, which must then have the same positions."""
        return self.name in ("krum", "geometric-median")

    def outvoted(self, clients: int) -> int:
        """Return how many of some clients the option `share` stands for."""
        return math.ceil(self.share * clients - SHARE_ROUNDING)


MEAN = Aggregation()


def combine_positions(rule: Aggregation, values: Tensor) -> Tensor:
    """Return the median or trimmed mean of every column over the clients that hold it; NaN if no client does."""
    ordered, counts = _ordered(values)
    if rule.name == "median":
        return ordered.gather(0, torch.stack([(counts - 1).clamp(min=0) // 2, counts // 2])).mean(0)
    removed = (rule.share * counts - SHARE_ROUNDING).ceil().long().minimum((counts - 1) // 2).clamp(min=0)
    rank = torch.arange(len(values), device=values.device)[:, None]
    kept = (rank >= removed) & (rank < counts - removed)
    return torch.where(kept, ordered, 0).sum(0) / (counts - 2 * removed)  # 0 / 0 without clients


def lower_median(values: Tensor) -> Tensor:
    """Return the median of every column over the clients that hold it, the lower of two middle values."""
    ordered, counts = _ordered(values)
    return ordered.gather(0, (counts - 1).clamp(min=0)[None] // 2)[0]


def _ordered(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return every column in ascending order, NaN last, and how many clients hold it."""
    return values.sort(dim=0).values, (~values.isnan()).sum(0)


def clip_factors(norms: Tensor, sizes: Tensor, largest: float | None = None) -> Tensor:
    """Return the factors that bring the norms of replies down to a bound.

    Without `largest`, the bound is the median over replies of the root mean square, so that replies with more
    positions may have a larger norm. `sizes` are the numbers of positions.
    """
    roots = sizes.clamp(min=1).sqrt()
    bound = (norms / roots).median() * roots if largest is None else torch.full_like(norms, largest)
    return torch.where(norms > bound, bound / norms, torch.ones_like(norms))


def reply_weights(rule: Aggregation, products: Tensor) -> Tensor:
    """Return the weights of replies in Krum or the geometric median, from the inner products of all pairs."""
    squares = products.diagonal()
    if rule.name == "krum":
        distances = squares[:, None] + squares[None] - 2 * products
        return krum_weights(rule, distances.clamp(min=0))
    return _geometric_median(products)


def krum_weights(rule: Aggregation, distances: Tensor) -> Tensor:
    """Return equal weights for the `keep` replies that are closest to their nearest neighbours (Blanchard et al.)."""
    clients = len(distances)
    liars = rule.outvoted(clients)
    neighbours = max(1, clients - liars - 2)
    others = distances.masked_fill(torch.eye(clients, dtype=torch.bool, device=distances.device), math.inf)
    scores = others.sort(dim=1).values[:, :neighbours].sum(1)
    chosen = scores.argsort(stable=True)[: max(1, min(rule.keep, clients - liars))]
    weights = torch.zeros_like(scores)
    weights[chosen] = 1 / len(chosen)
    return weights


def _geometric_median(products: Tensor) -> Tensor:
    """Return the weights of replies whose weighted mean has the least sum of distances to them (Weiszfeld).

    The distance to a weighted mean follows from inner products, so that no vector is needed in an iteration.
    """
    clients = len(products)
    weights = products.new_full((clients,), 1 / clients)
    squares = products.diagonal()
    least = 1e-12 * squares.median().clamp(min=1e-300).sqrt()  # a mean that meets a reply has no distance to it
    for _ in range(ITERATIONS):
        towards = products @ weights
        distances = (squares - 2 * towards + weights @ towards).clamp(min=0).sqrt()
        weights = 1 / torch.maximum(distances, least)
        weights = weights / weights.sum()
    return weights


def combine_rows(rule: Aggregation, rows: Tensor, weights: Tensor, bound: float) -> Tensor:
    """Combine vectors of several clients into one. `bound` is the largest norm if too few clients hold the vector."""
    norms = rows.norm(dim=1)
    sizes = torch.full_like(norms, rows.shape[1])
    if len(rows) < LEAST_HOLDERS:
        return weighted_rows(rows, torch.ones_like(norms), clip_factors(norms, sizes, rule.norm or bound))
    if rule.by_position:
        return combine_positions(rule, rows)
    if rule.compares_replies:
        centred = rows - lower_median(rows)  # large common values would hide the distances
        return weighted_rows(rows, reply_weights(rule, centred @ centred.T), torch.ones_like(norms))
    return weighted_rows(rows, weights, clip_factors(norms, sizes, rule.norm))


def weighted_rows(rows: Tensor, weights: Tensor, factors: Tensor) -> Tensor:
    """Return sum_k w_k f_k x_k / sum_k w_k of every column, over the clients that hold it."""
    held = ~rows.isnan()
    total = (torch.where(held, rows, 0) * (weights * factors)[:, None]).sum(0)
    return total / (held * weights[:, None]).sum(0)
