"""Counts of an update's entries."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyfed.core.histograms import BINS, counts, edges_for


def test_by_hand() -> None:
    # From -2 to 2 in 50 bins of 0.08: -2 is in the first, 0 begins the 26th, 2 closes the last.
    values = torch.tensor([-2.0, 0.0, 0.01, 2.0, 2.0])
    found = counts(values, edges_for(values))
    assert found.tolist() == [1] + [0] * 24 + [2] + [0] * 23 + [2]


@given(st.lists(st.floats(-1e6, 1e6, width=32), max_size=40))
@settings(max_examples=25, deadline=None)
def test_nothing_is_lost(values: list[float]) -> None:
    some = torch.tensor(values)
    found = counts(some, edges_for(some, torch.zeros(2)))
    assert len(found) == BINS
    assert int(found.sum()) == len(values)
