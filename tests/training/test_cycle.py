"""Endless batches of a few samples."""

from __future__ import annotations

import pytest
import torch

from polyfed.core import rng
from polyfed.training.endless_batches import cycled


def test_every_pass_yields_all_samples_in_a_new_order() -> None:
    pairs = cycled(torch.arange(5), torch.arange(5) * 10, 2, rng.generator("cycle"))
    passes = [[next(pairs) for _ in range(3)] for _ in range(2)]
    for batches in passes:
        assert sorted(torch.cat([x for x, _ in batches]).tolist()) == [0, 1, 2, 3, 4]
        assert all(torch.equal(y, x * 10) for x, y in batches)
    assert [x.tolist() for x, _ in passes[0]] != [x.tolist() for x, _ in passes[1]]


def test_no_samples_are_an_error() -> None:
    with pytest.raises(ValueError, match="no samples"):
        next(cycled(torch.zeros(0), torch.zeros(0), 2, rng.generator("cycle")))
