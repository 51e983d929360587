"""The largest value of every field, which tells replies that are far from the others."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from polyfed.core.class_tables import ClassTable
from polyfed.core.finite_values import LARGEST, check_finite
from polyfed.errors import PayloadError


def test_the_largest_absolute_value_of_every_field() -> None:
    tree = {"near": torch.tensor([0.5]), "far": {"low": torch.tensor([-7.0, 2.0]), "number": 3}}
    table = ClassTable(torch.tensor([2]), torch.tensor([[1.0, -4.0]]))
    payload: dict[str, Any] = {"tree": tree, "table": table, "number": -2, "empty": {}, "none": torch.zeros(0)}
    payload |= {"flag": True, "text": "long", "labels": torch.tensor([9])}  # no magnitudes
    expected = {"tree": 7.0, "table": 4.0, "number": 2.0}
    assert check_finite(payload) == {name: expected.get(name, 0.0) for name in payload}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_not_finite_are_named_by_their_path(value: float) -> None:
    with pytest.raises(PayloadError, match="'tree/far'"):
        check_finite({"tree": {"near": torch.zeros(2), "far": torch.tensor([0.0, value])}})
    with pytest.raises(PayloadError, match="'number'"):
        check_finite({"number": value})


def test_numbers_have_a_bound() -> None:
    assert check_finite({"number": LARGEST}) == {"number": LARGEST}
    with pytest.raises(PayloadError, match="'number'"):
        check_finite({"number": 2 * LARGEST})
