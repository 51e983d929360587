"""Named random streams: stable, independent, without effect on the global state."""

from __future__ import annotations

import itertools

import numpy as np
import torch

from polyfed.core import rng


def test_streams_never_change_between_versions() -> None:
    # Pinned: another number here means that no earlier run can be repeated.
    assert rng.derive(0, "fit", "3", 1, "train") == 8367201081623220583
    assert torch.randperm(6, generator=rng.generator(7, "a")).tolist() == [4, 2, 5, 3, 1, 0]
    assert rng.numpy_generator(7, "a").integers(1000, size=4).tolist() == [901, 717, 948, 401]


def test_every_part_of_a_name_changes_the_stream() -> None:
    names: list[tuple[int | str, ...]] = [
        (0, "fit", "3", 1, "train"),
        (1, "fit", "3", 1, "train"),
        (0, "init", "3", 1, "train"),
        (0, "fit", "4", 1, "train"),
        (0, "fit", "3", 2, "train"),
        (0, "fit", "3", 1, "train.2"),
        (0, "fit", 3, 1, "train"),
        (0, "fit", "31", "train"),
        (0, "fit", "3", "1train"),
        (0, "fit"),
    ]
    assert len({rng.derive(*name) for name in names}) == len(names)


def test_streams_are_not_correlated() -> None:
    draws = [rng.numpy_generator(0, "noise", str(k)).normal(size=4000) for k in range(5)]
    for a, b in itertools.combinations(draws, 2):
        # the correlation of independent draws has deviation 1/sqrt(4000) = 0.016
        assert abs(float(np.corrcoef(a, b)[0, 1])) < 0.08


def test_seeded_uses_the_stream_and_restores_the_global_state() -> None:
    before = torch.random.get_rng_state()
    with rng.seeded(3, "weights"):
        first = torch.rand(5)
        with rng.seeded(4, "weights"):
            inner = torch.rand(5)
        rest = torch.rand(5)
    assert torch.equal(torch.random.get_rng_state(), before)
    with rng.seeded(3, "weights"):
        assert torch.equal(torch.rand(5), first)
        assert torch.equal(torch.rand(5), rest)
    assert not torch.equal(inner, first)


def test_seeded_restores_the_global_state_after_an_error() -> None:
    before = torch.random.get_rng_state()
    try:
        with rng.seeded(3, "weights"):
            torch.rand(1)
            raise KeyError
    except KeyError:
        pass
    assert torch.equal(torch.random.get_rng_state(), before)
