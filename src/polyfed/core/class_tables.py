"""Class tables: one vector per class, for some of the classes, with the number of samples behind each."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from polyfed.core.aggregation import MEAN, Aggregation, combine_rows
from polyfed.errors import PayloadError
from polyfed.training.precision import double


@dataclass(frozen=True)
class Bound:
    """Guarantee that every row is the mean of at least `count` vectors with an L2 norm of at most `norm`."""

    norm: float
    count: int


@dataclass(frozen=True)
class ClassTable:
    """Rows of some classes: `values[i]` is the vector of class `classes[i]`, computed from `counts[i]` samples.

    Classes are ascending and distinct. A missing class has no row; it is never a row of zeros.
    """

    classes: Tensor  # (m,) int64
    values: Tensor  # (m, width)
    counts: Tensor | None = None  # (m,) int64
    bound: Bound | None = None  # how the rows were computed; not part of messages

    def __post_init__(self) -> None:
        rows = self.classes.shape[0]
        if self.values.ndim != 2 or self.values.shape[0] != rows:
            raise PayloadError(f"a class table of {rows} classes has values of shape {tuple(self.values.shape)}")
        if self.counts is not None and self.counts.shape != (rows,):
            raise PayloadError(f"a class table of {rows} classes has counts of shape {tuple(self.counts.shape)}")
        if self.counts is not None and bool((self.counts < 1).any()):
            raise PayloadError("a row of a class table must be computed from at least one sample")
        labels = self.classes.cpu().numpy()  # for few numbers, its operations take less time than torch's
        if rows > 1 and not bool((labels[1:] > labels[:-1]).all()):
            raise PayloadError("the classes of a class table must be ascending and distinct")

    @staticmethod
    def empty(width: int) -> ClassTable:
        none = torch.zeros(0, dtype=torch.int64)
        return ClassTable(none, torch.zeros(0, width), none)

    @staticmethod
    def of(rows: Mapping[int, Tensor], width: int) -> ClassTable:
        """Return a table without counts from a mapping of class to vector."""
        if not rows:
            return ClassTable.empty(width).without_counts()
        classes = sorted(rows)
        values = torch.stack([rows[c] for c in classes])
        return ClassTable(torch.tensor(classes).to(values.device), values)

    def __len__(self) -> int:
        return len(self.classes)

    def to(self, device: torch.device) -> ClassTable:
        """Return this table on a device. It has been checked, and a check would wait for the device."""
        table = object.__new__(ClassTable)
        for name, value in vars(self).items():
            moved = value.to(device, non_blocking=device.type != "cpu") if isinstance(value, Tensor) else value
            object.__setattr__(table, name, moved)
        return table

    @property
    def width(self) -> int:
        return self.values.shape[1]

    def row(self, label: int) -> Tensor | None:
        """Return the vector of one class, or None if it has no row."""
        index = (self.classes == label).nonzero()
        return self.values[int(index[0])] if len(index) else None

    def counted(self) -> Tensor:
        """Return the counts. Raise PayloadError if the table has none."""
        if self.counts is None:
            raise PayloadError("this class table carries no counts")
        return self.counts

    def count(self, label: int) -> int:
        """Return the number of samples of a class, or 0 if it has no row."""
        return int(self.counted()[self.classes == label].sum())

    def dense(self, num_classes: int) -> tuple[Tensor, Tensor]:
        """Return a (num_classes, width) tensor, with zeros for missing classes, and the mask of existing rows.

        Index both by labels inside a loss. Always apply the mask.
        """
        values = self.values.new_zeros(num_classes, self.width)
        mask = self.values.new_zeros(num_classes, dtype=torch.bool)
        values[self.classes] = self.values
        mask[self.classes] = True
        return values, mask

    def without_counts(self) -> ClassTable:
        return ClassTable(self.classes, self.values, bound=self.bound)

    def only(self, classes: Iterable[int]) -> ClassTable:
        """Return a table with the rows of some classes."""
        wanted = torch.tensor(list(classes), dtype=torch.int64).to(self.classes.device)
        chosen = torch.isin(self.classes, wanted)
        counts = None if self.counts is None else self.counts[chosen]
        return ClassTable(self.classes[chosen], self.values[chosen], counts, self.bound)

    def updated(self, newer: ClassTable) -> ClassTable:
        """Return this table with the rows of `newer`. Classes that `newer` lacks keep their rows."""
        rows = {int(c): v for c, v in zip(self.classes, self.values, strict=True)}
        rows |= {int(c): v for c, v in zip(newer.classes, newer.values, strict=True)}
        return ClassTable.of(rows, newer.width)


def mean_over_clients(
    tables: Iterable[ClassTable],
    *,
    width: int,
    by_count: bool = False,
    out_of: int | None = None,
    rule: Aggregation = MEAN,
) -> ClassTable:
    """Return the mean row per class over the clients that have it, unweighted or weighted by counts.

    Rows are added in the order of the tables, in double precision. With `out_of`, unweighted sums are divided by this
    number of clients, whether they have the class or not. Pass `server.aggregation` as `rule` to combine the rows of
    every class by the aggregation rule of the config.
    """
    tables = [table for table in tables if len(table)]
    if not tables:
        return ClassTable.empty(width).without_counts()
    values = torch.cat([table.values for table in tables])
    weight = values.new_ones(len(values), dtype=torch.float64)
    if by_count:
        weight = torch.cat([table.counted().double() for table in tables])
    classes, positions = torch.unique(torch.cat([table.classes for table in tables]), return_inverse=True)
    weights = weight.new_zeros(len(classes)).index_add_(0, positions, weight)
    present = weights > 0
    divisor = weights[present, None] if out_of is None else float(out_of)
    if rule.is_mean:
        total = weight.new_zeros(len(classes), width).index_add_(0, positions, values.double() * weight[:, None])
        means = total[present] / divisor
    else:
        means = _robust_rows(rule, values.double(), weight, positions, len(classes))[present]
        means = means * (weights[present, None] / divisor)
    return ClassTable(classes[present], means.to(values.dtype))


def _robust_rows(rule: Aggregation, values: Tensor, weight: Tensor, positions: Tensor, classes: int) -> Tensor:
    """Return the combined row of every class. Rows of classes with one or two holders are clipped to the median norm
    over all rows, because no majority can outvote a wrong one."""
    bound = float(values.norm(dim=1).median())
    rows = []
    for c in range(classes):
        held = (positions == c) & (weight > 0)
        rows.append(combine_rows(rule, values[held], weight[held], bound))
    return torch.stack(rows)


class LastClassMeans:
    """Class means over the last `samples` samples that were added, which are those of the last epoch of training.

    Batches are kept as a whole: an older batch that does not fit is left out.
    """

    def __init__(self, num_classes: int, samples: int) -> None:
        self._num_classes = num_classes
        self._samples = samples
        self._batches: deque[tuple[Tensor, Tensor]] = deque()
        self._kept = 0

    def add(self, vectors: Tensor, labels: Tensor) -> None:
        self._batches.append((vectors.detach(), labels))
        self._kept += len(labels)
        while self._kept > self._samples and len(self._batches) > 1:
            self._kept -= len(self._batches.popleft()[1])

    def table(self, width: int, *, min_count: int = 1) -> ClassTable:
        """Return the means, with counts, of the classes that have at least `min_count` samples."""
        means = ClassMeans(self._num_classes)
        for vectors, labels in self._batches:
            means.add(vectors, labels)
        return means.table(width, min_count=min_count)


class ClassMeans:
    """Running class means. Call `add` for every batch, then `table`."""

    def __init__(self, num_classes: int) -> None:
        self._num_classes = num_classes
        self._total: Tensor | None = None
        self._count: Tensor | None = None

    def add(self, vectors: Tensor, labels: Tensor) -> None:
        vectors = double(vectors.detach())
        labels = labels.to(vectors.device)
        if self._total is None or self._count is None:
            self._total = vectors.new_zeros(self._num_classes, vectors.shape[1])
            self._count = labels.new_zeros(self._num_classes)
        self._total.index_add_(0, labels, vectors)
        self._count.index_add_(0, labels, torch.ones_like(labels))  # a count by `bincount` would wait for the device

    def table(self, width: int, *, min_count: int = 1) -> ClassTable:
        """Return the means, with counts, of the classes that have at least `min_count` samples."""
        if self._total is None or self._count is None:
            return ClassTable.empty(width)
        classes = (self._count >= max(1, min_count)).nonzero()[:, 0]
        counts = self._count[classes]
        values = self._total[classes] / counts[:, None]
        return ClassTable(classes, values.float(), counts)


def class_means(
    batches: Iterable[tuple[Tensor, Tensor]],
    vector: Callable[[Tensor], Tensor],
    num_classes: int,
    width: int,
    min_count: int = 1,
    bound: Bound | None = None,
) -> ClassTable:
    """Return class means of `vector(x)` over batches. If `bound` is given, clip vectors and drop small classes."""
    means = ClassMeans(num_classes)
    with torch.no_grad():
        for x, y in batches:
            vectors = vector(x)
            if bound is not None:
                vectors = double(vectors)
                norms = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
                vectors = vectors * (bound.norm / norms.clamp_min(bound.norm))
            means.add(vectors, y)
    least = max(min_count, bound.count) if bound is not None else min_count
    return replace(means.table(width, min_count=least), bound=bound)


def among_classes_of(labels: Tensor, scores: Tensor) -> Tensor:
    """Leave out the scores of classes that no label has, unless no other class has a score."""
    own = torch.bincount(labels, minlength=scores.shape[1]) > 0
    masked = scores.masked_fill(~own, -torch.inf)
    return torch.where(torch.isfinite(masked).any(1, keepdim=True), masked, scores)
