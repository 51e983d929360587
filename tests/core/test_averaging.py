"""The weighted mean of state dicts."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyfed.core.averaging import WeightedMean


def test_mean_by_hand() -> None:
    # (1 * 2 + 3 * 6) / 4 = 5; counters take the maximum, and a variance never falls below zero.
    mean = WeightedMean()
    mean.add({"w": torch.tensor([2.0]), "running_var": torch.tensor([-1.0]), "n": torch.tensor(4)}, 1)
    mean.add({"w": torch.tensor([6.0]), "running_var": torch.tensor([0.0]), "n": torch.tensor(3)}, 3)
    got = mean.result({})
    assert got["w"].tolist() == [5.0]
    assert got["running_var"].tolist() == [0.0]
    assert got["n"].item() == 4 and got["n"].dtype == torch.int64


def test_without_replies_the_default_is_returned() -> None:
    before = {"w": torch.tensor([1.0])}
    assert WeightedMean().result(before) is before
    weightless = WeightedMean()
    weightless.add({"w": torch.tensor([9.0])}, 0)
    assert weightless.result(before) is before


def test_inputs_are_not_changed() -> None:
    first, second = torch.tensor([1.0]), torch.tensor([2.0])
    counter = torch.tensor(5)
    mean = WeightedMean()
    mean.add({"w": first, "n": counter}, 2)
    mean.add({"w": second, "n": torch.tensor(9)}, 2)
    mean.result({})
    assert (first.item(), second.item(), counter.item()) == (1.0, 2.0, 5)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 99)), min_size=1, max_size=6))
def test_mean_equals_numpy_and_stays_in_range(parts: list[tuple[int, int]]) -> None:
    tensors = [np.random.Generator(np.random.PCG64(seed)).normal(size=4).astype(np.float32) for _, seed in parts]
    weights = [float(w) for w, _ in parts]
    mean = WeightedMean()
    for tensor, weight in zip(tensors, weights, strict=True):
        mean.add({"w": torch.from_numpy(tensor)}, weight)
    got = mean.result({})["w"].numpy()
    np.testing.assert_allclose(got, np.average(tensors, axis=0, weights=weights), rtol=1e-6, atol=1e-7)
    assert (got <= np.max(tensors, axis=0)).all() and (got >= np.min(tensors, axis=0)).all()
    assert got.dtype == np.float32
