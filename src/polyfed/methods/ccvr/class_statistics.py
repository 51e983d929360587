"""Means and covariances of classes in a message: one row of a class table is a mean followed by a covariance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from polyfed.core.class_tables import ClassTable
from polyfed.core.row_training import Rows
from polyfed.methods.ccvr.gaussians import Gaussian, describe, pooled, sample


def statistics_width(features: int, diagonal: bool) -> int:
    """Return the number of entries of a row."""
    return features + (features if diagonal else features**2)


def describe_classes(
    batches: Iterable[tuple[Tensor, Tensor]],
    vector: Callable[[Tensor], Tensor],
    features: int,
    *,
    diagonal: bool = False,
    biased: bool = False,
    min_count: int = 1,
) -> ClassTable:
    """Return count, mean and covariance of `vector(x)` for every class with at least `min_count` samples."""
    vectors, labels = [], []
    with torch.no_grad():
        for x, y in batches:
            vectors.append(vector(x))
            labels.append(y)
    f = torch.cat(vectors) if vectors else torch.zeros(0, features)
    y = torch.cat(labels) if labels else torch.zeros(0, dtype=torch.int64)
    classes = (torch.bincount(y) >= max(1, min_count)).nonzero()[:, 0].tolist()
    described = {c: describe(f[y == c], diagonal=diagonal, biased=biased) for c in classes}
    return _packed(described, statistics_width(features, diagonal))


def pool_classes(tables: Iterable[ClassTable], features: int, *, diagonal: bool = False) -> ClassTable:
    """Return the statistics of the union of all samples described by the tables."""
    parts: dict[int, list[Gaussian]] = {}
    for table in tables:
        for c, part in _unpacked(table, features).items():
            parts.setdefault(c, []).append(part)
    return _packed({c: pooled(gaussians) for c, gaussians in parts.items()}, statistics_width(features, diagonal))


def sample_classes(table: ClassTable, features: int, count: int, *, ridge: float, stream: torch.Generator) -> Rows:
    """Sample `count` vectors of every class from its normal distribution, with their labels."""
    vectors = [sample(part, count, ridge=ridge, stream=stream) for part in _unpacked(table, features).values()]
    none = table.values.new_zeros(0, features)
    return Rows(torch.cat([none, *vectors]), table.classes.repeat_interleave(count))


def _packed(classes: Mapping[int, Gaussian], width: int) -> ClassTable:
    rows = {c: torch.cat([part.mean, part.covariance.flatten()]).float() for c, part in classes.items()}
    table = ClassTable.of(rows, width)
    counts = torch.tensor([classes[c].count for c in sorted(classes)], dtype=torch.int64).to(table.classes.device)
    return ClassTable(table.classes, table.values, counts)


def _unpacked(table: ClassTable, features: int) -> dict[int, Gaussian]:
    counts = [1] * len(table) if table.counts is None else table.counts.tolist()
    gaussians = {}
    for c, count, row in zip(table.classes.tolist(), counts, table.values, strict=True):
        mean, covariance = row[:features], row[features:]
        is_full = len(covariance) == features**2 and features > 1
        gaussians[c] = Gaussian(count, mean, covariance.reshape(features, features) if is_full else covariance)
    return gaussians
