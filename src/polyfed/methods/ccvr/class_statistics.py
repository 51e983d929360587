"""Means and covariances of classes as they travel: one row of a class table is a mean followed by a covariance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from polyfed.core.class_rows import Rows
from polyfed.core.class_tables import ClassTable
from polyfed.methods.ccvr.gaussians import Gaussian, describe, draw, pooled


def statistics_width(features: int, diagonal: bool) -> int:
    """Numbers in a row."""
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
    """Count, mean and covariance of `vector(x)` for every class with at least `min_count` samples."""
    vectors, labels = [torch.zeros(0, features)], [torch.zeros(0, dtype=torch.int64)]
    with torch.no_grad():
        for x, y in batches:
            vectors.append(vector(x))
            labels.append(y)
    f, y = torch.cat(vectors), torch.cat(labels)
    classes = (torch.bincount(y) >= max(1, min_count)).nonzero()[:, 0].tolist()
    found = {c: describe(f[y == c], diagonal=diagonal, biased=biased) for c in classes}
    return _packed(found, statistics_width(features, diagonal))


def pool_classes(tables: Iterable[ClassTable], features: int, *, diagonal: bool = False) -> ClassTable:
    """The statistics of the union of all samples behind some tables."""
    parts: dict[int, list[Gaussian]] = {}
    for table in tables:
        for c, part in _unpacked(table, features).items():
            parts.setdefault(c, []).append(part)
    return _packed({c: pooled(several) for c, several in parts.items()}, statistics_width(features, diagonal))


def draw_classes(table: ClassTable, features: int, count: int, *, ridge: float, stream: torch.Generator) -> Rows:
    """`count` vectors of every class, drawn from its normal distribution, with their labels."""
    drawn = [draw(part, count, ridge=ridge, stream=stream) for part in _unpacked(table, features).values()]
    return Rows(torch.cat([torch.zeros(0, features), *drawn]), table.classes.repeat_interleave(count))


def _packed(classes: Mapping[int, Gaussian], width: int) -> ClassTable:
    rows = {c: torch.cat([part.mean, part.covariance.flatten()]).float() for c, part in classes.items()}
    table = ClassTable.of(rows, width)
    counts = torch.tensor([classes[c].count for c in sorted(classes)], dtype=torch.int64)
    return ClassTable(table.classes, table.values, counts)


def _unpacked(table: ClassTable, features: int) -> dict[int, Gaussian]:
    counts = [1] * len(table) if table.counts is None else table.counts.tolist()
    found = {}
    for c, count, row in zip(table.classes.tolist(), counts, table.values, strict=True):
        mean, spread = row[:features], row[features:]
        full = len(spread) == features**2 and features > 1
        found[c] = Gaussian(count, mean, spread.reshape(features, features) if full else spread)
    return found
