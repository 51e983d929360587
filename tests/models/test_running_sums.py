"""Sums over clients: the same bits as adding one tensor after the other, however many are added at a time."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from polyfed.core.averaging import WeightedMean
from polyfed.errors import PayloadError, RunError
from polyfed.models.slicing import running_sums
from polyfed.models.slicing.running_sums import RunningSums, Subscript, Term

SHAPE = (7, 5, 3)
POSITIONS: list[Subscript] = [
    (slice(None), slice(None), slice(None)),
    (slice(0, 4), slice(0, 2), slice(None)),
    (slice(2, 7), slice(1, 5), slice(None)),
    (torch.tensor([6, 0, 3])[:, None], torch.tensor([4, 1]), slice(None)),
    (torch.tensor([6, 0, 3, 1, 5, 2, 4]), slice(None), slice(None)),  # all positions, in another order
]


def added_one_by_one(terms: list[Term]) -> Tensor:
    total = torch.full(SHAPE, -0.0, dtype=torch.float64)
    for term in terms:
        value = term.value.double()
        if term.minus is not None:
            value = value - term.minus[term.at].double()
        total[term.at] = total[term.at] + value * term.times * term.weight
    return total


@given(
    positions=st.lists(st.integers(0, len(POSITIONS) - 1), min_size=1, max_size=9),
    with_minus=st.booleans(),
    block=st.integers(1, 40),
    waiting=st.integers(1, 5),
)
@settings(max_examples=60)
def test_blocks_and_waiting_terms_do_not_change_bits(
    positions: list[int], with_minus: bool, block: int, waiting: int
) -> None:
    draws = torch.Generator().manual_seed(len(positions) + block)
    minuses = [torch.randn(SHAPE, generator=draws) if with_minus else None for _ in range(2)]
    terms = []
    for number, position in enumerate(positions):
        at = POSITIONS[position]
        value = torch.randn(torch.empty(SHAPE)[at].shape, generator=draws)
        value[0] = -0.0
        terms.append(Term(value, at, 0.3 + number, minuses[number // 2 % 2], 1.0 if number % 2 else 0.7))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running_sums, "BLOCK", block)
        patch.setattr(running_sums, "MAX_WAITING", waiting)
        sums = RunningSums()
        like = torch.empty(SHAPE)
        for number, term in enumerate(terms):
            sums.add({"w": term} if number < 3 else {"w": term, "late": term}, {"w": like, "late": like})
        totals = sums.take()
    assert totals.keys() == ({"w"} if len(terms) <= 3 else {"w", "late"})
    for name, total in totals.items():
        expected = added_one_by_one(terms if name == "w" else terms[3:])
        assert total.dtype == torch.float64
        assert torch.equal(total.view(torch.int64), expected.view(torch.int64))  # signs of zeros as well


def test_other_memory_layouts_are_added_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_sums, "BLOCK", 4)
    at = (slice(None),) * 3
    terms = [Term(torch.randn(3, 5, 7).permute(2, 1, 0), at, 2.0), Term(torch.randn(SHAPE), at, 3.0)]
    sums = RunningSums()
    for term in terms:
        sums.add({"w": term}, {"w": torch.empty(SHAPE)})
    assert torch.equal(sums.take()["w"], added_one_by_one(terms))


def test_integers_take_the_maximum() -> None:
    sums = RunningSums()
    for value in (3, -5, 7, 2, 1, -9):  # more than are added at a time
        sums.add({"n": Term(torch.tensor(value), (), 2.0)}, {"n": torch.tensor(0)})
    assert sums.take()["n"].item() == 7


def test_large_terms_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum of models of gigabytes must not keep several of them in memory."""
    monkeypatch.setattr(running_sums, "MAX_WAITING_BYTES", 100)
    sums, small, large = RunningSums(), torch.ones(5), torch.ones(50)
    sums.add({"w": Term(small, (slice(None),))}, {"w": small})
    assert sums.waiting == 1
    sums.add({"v": Term(large, (slice(None),))}, {"v": large})
    assert sums.waiting == 0
    assert sums.take()["w"].tolist() == [1.0] * 5


def test_sums_are_taken_once() -> None:
    sums, one = RunningSums(), torch.ones(2)
    sums.add({"w": Term(one, (slice(None),))}, {"w": one})
    sums.take()
    with pytest.raises(RunError, match="start another one"):
        sums.add({"w": Term(one, (slice(None),))}, {"w": one})
    with pytest.raises(RunError, match="start another one"):
        sums.take()


@pytest.mark.parametrize("shape", [(3, 2), (1, 2), (2,)])
def test_a_reply_of_another_shape_is_found_when_it_is_added(shape: tuple[int, ...]) -> None:
    """Later it would not be known whose reply it is."""
    mean = WeightedMean()
    mean.add({"w": torch.ones(2, 2)}, 1.0)
    with pytest.raises(PayloadError, match=r"'w' has the shape .*; that of another client has \(2, 2\)"):
        mean.add({"w": torch.ones(shape)}, 1.0)
    mean.add({"w": torch.full((2, 2), 4.0)}, 2.0)
    assert mean.result({})["w"].tolist() == [[3.0, 3.0], [3.0, 3.0]]
