"""Class tables: rows, means and updates."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyfed.core.class_tables import (
    ClassMeans,
    ClassTable,
    LastClassMeans,
    among_classes_of,
    mean_over_clients,
)
from polyfed.errors import PayloadError


def table(rows: dict[int, list[float]], counts: list[int] | None = None) -> ClassTable:
    made = ClassTable.of({label: torch.tensor(row) for label, row in rows.items()}, 2)
    return ClassTable(made.classes, made.values, None if counts is None else torch.tensor(counts))


def test_mean_over_clients_by_hand() -> None:
    # Class 0: clients A (2, 0) from 1 sample and B (4, 4) from 3. Class 2: A alone, (1, 1). Class 5: B alone, (6, 0).
    # Plain: ((2, 0) + (4, 4)) / 2 = (3, 2). By count: (1 * (2, 0) + 3 * (4, 4)) / 4 = (3.5, 3).
    a = table({0: [2.0, 0.0], 2: [1.0, 1.0]}, [1, 7])
    b = table({0: [4.0, 4.0], 5: [6.0, 0.0]}, [3, 2])
    plain = mean_over_clients([a, b], width=2)
    assert plain.classes.tolist() == [0, 2, 5]
    assert plain.values.tolist() == [[3.0, 2.0], [1.0, 1.0], [6.0, 0.0]]
    weighted = mean_over_clients([a, b], width=2, by_count=True)
    assert weighted.values.tolist() == [[3.5, 3.0], [1.0, 1.0], [6.0, 0.0]]
    assert plain.values.dtype == torch.float32


def test_mean_of_no_tables_has_no_rows() -> None:
    nothing = mean_over_clients([], width=7)
    assert len(nothing) == 0
    assert nothing.width == 7
    assert len(mean_over_clients([ClassTable.empty(7)], width=7)) == 0


def test_missing_classes_keep_their_rows() -> None:
    old = table({0: [1.0, 1.0], 3: [2.0, 2.0]})
    new = old.updated(table({1: [5.0, 5.0], 3: [9.0, 9.0]}))
    assert new.classes.tolist() == [0, 1, 3]
    assert new.values.tolist() == [[1.0, 1.0], [5.0, 5.0], [9.0, 9.0]]
    assert old.values.tolist() == [[1.0, 1.0], [2.0, 2.0]]
    assert new.updated(ClassTable.empty(2)).values.tolist() == new.values.tolist()


def test_reading_a_table() -> None:
    t = table({1: [1.0, 2.0], 4: [3.0, 4.0]}, [5, 6])
    row = t.row(4)
    assert row is not None and row.tolist() == [3.0, 4.0]
    assert t.row(0) is None
    assert (t.count(4), t.count(0)) == (6, 0)
    values, known = t.dense(6)
    assert known.tolist() == [False, True, False, False, True, False]
    assert values[4].tolist() == [3.0, 4.0] and values[0].tolist() == [0.0, 0.0]
    assert t.only([4, 9]).classes.tolist() == [4]
    with pytest.raises(PayloadError, match="no counts"):
        t.without_counts().count(1)


@pytest.mark.parametrize(
    ("classes", "values", "counts", "message"),
    [
        ([0, 1], torch.zeros(3, 2), None, "2 classes has values of shape"),
        ([0, 1], torch.zeros(2), None, "values of shape"),
        ([1, 0], torch.zeros(2, 2), None, "ascending"),
        ([1, 1], torch.zeros(2, 2), None, "distinct"),
        ([0, 1], torch.zeros(2, 2), [1], "counts of shape"),
        ([0, 1], torch.zeros(2, 2), [1, 0], "at least one sample"),
    ],
)
def test_invalid_tables_are_refused(
    classes: list[int], values: torch.Tensor, counts: list[int] | None, message: str
) -> None:
    with pytest.raises(PayloadError, match=message):
        ClassTable(torch.tensor(classes), values, None if counts is None else torch.tensor(counts))


@settings(max_examples=25, deadline=None)
@given(
    labels=st.lists(st.integers(0, 4), max_size=30),
    cuts=st.lists(st.integers(0, 30), max_size=4),
    seed=st.integers(0, 100),
    min_count=st.integers(0, 4),
)
def test_class_means_equal_numpy_for_any_split_into_batches(
    labels: list[int], cuts: list[int], seed: int, min_count: int
) -> None:
    vectors = np.random.Generator(np.random.PCG64(seed)).normal(size=(len(labels), 3)).astype(np.float32)
    marks = np.array(labels, dtype=np.int64)
    means = ClassMeans(5)
    edges = [0, *sorted(min(cut, len(labels)) for cut in cuts), len(labels)]
    for start, stop in itertools.pairwise(edges):
        means.add(torch.from_numpy(vectors[start:stop]), torch.from_numpy(marks[start:stop]))
    found = means.table(3, min_count=min_count)
    wanted = [c for c in range(5) if (marks == c).sum() >= max(1, min_count)]
    assert found.classes.tolist() == wanted
    assert found.counts is not None
    assert found.counts.tolist() == [int((marks == c).sum()) for c in wanted]
    for c, row in zip(wanted, found.values, strict=True):
        np.testing.assert_allclose(row.numpy(), vectors[marks == c].astype(np.float64).mean(0), rtol=1e-6, atol=1e-7)


def test_class_means_without_samples() -> None:
    empty = ClassMeans(5).table(3)
    assert (len(empty), empty.width) == (0, 3)


def test_scores_of_absent_classes_are_left_out_unless_no_other_class_has_one() -> None:
    labels, none = torch.tensor([0, 2, 2]), -torch.inf
    scores = torch.tensor([[1.0, 5.0, 2.0, 3.0], [none, 5.0, none, 3.0]])
    assert among_classes_of(labels, scores).tolist() == [[1.0, none, 2.0, none], [none, 5.0, none, 3.0]]


def test_rows_of_some_classes_keep_their_counts() -> None:
    table = ClassTable(torch.tensor([0, 1, 3]), torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([5, 6, 7]))
    part = table.only([3, 1, 2])
    assert part.classes.tolist() == [1, 3] and part.values.tolist() == [[2.0], [3.0]]
    assert part.counted().tolist() == [6, 7] and table.without_counts().only([0]).counts is None


def test_means_of_the_last_epoch_by_hand() -> None:
    # Five samples in batches of two: an epoch is three batches, and the first epoch must not count.
    means = LastClassMeans(3, samples=5)
    for values in ([9.0, 9.0], [9.0, 9.0], [9.0], [1.0, 2.0], [3.0, 5.0], [8.0]):
        labels = torch.tensor([0, 2][: len(values)])
        means.add(torch.tensor(values)[:, None], labels)
    table = means.table(1)
    assert table.classes.tolist() == [0, 2]
    assert table.values.tolist() == [[(1.0 + 3.0 + 8.0) / 3], [(2.0 + 5.0) / 2]]
    assert table.counts is not None and table.counts.tolist() == [3, 2]
    assert means.table(1, min_count=3).classes.tolist() == [0]
    assert len(LastClassMeans(3, samples=5).table(1)) == 0
