"""Bounds of options: checked whenever a method or a filter is created."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from annotated_types import Ge, Gt, Interval

from polyfed import catalogue
from polyfed.core import Method
from polyfed.core.options import Degenerate
from polyfed.errors import InputError
from polyfed.filters.inco import InCo
from polyfed.methods.fedproto import FedProto


@dataclass(frozen=True)
class Bounded(Method):
    weight: Annotated[float, Ge(0), Degenerate(0)] = 1.0
    momentum: Annotated[float, Interval(ge=0, lt=1)] = 0.9
    share: Annotated[float, Interval(gt=0, le=1), Degenerate(1)] = 0.5
    clip_norm: Annotated[float, Gt(0)] | Literal["auto"] | None = None
    epochs: list[Annotated[int, Ge(0)]] | None = None
    allow_degenerate: bool = False


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"weight": -1.0}, "method.weight is -1.0; expected a number of at least 0"),
        ({"weight": float("nan")}, "method.weight is nan; expected a number of at least 0"),
        ({"momentum": 1.0}, "method.momentum is 1.0; expected a number of at least 0 and below 1"),
        ({"share": 0}, "method.share is 0; expected a number above 0 and at most 1"),
        ({"clip_norm": 0.0}, "method.clip_norm is 0.0; expected a number above 0"),
        ({"epochs": [1, -2]}, "method.epochs is -2; expected a number of at least 0"),
        (
            {"weight": 0.0},
            "method.weight is 0, which switches Bounded off; use another value, or set method.allow_degenerate: true",
        ),
        (
            {"share": 1.0},
            "method.share is 1, which switches Bounded off; use another value, or set method.allow_degenerate: true",
        ),
    ],
)
def test_out_of_bounds_options_raise(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as error:
        Bounded(**options)
    assert str(error.value) == sentence


def test_bounds_themselves_none_and_words_are_accepted() -> None:
    Bounded(momentum=0.0, clip_norm="auto", epochs=[0, 3])
    Bounded(weight=0.0, share=1.0, clip_norm=None, allow_degenerate=True)


def test_configs_and_python_get_the_same_sentence() -> None:
    expected = r"^method.guidance is -2.0; expected a number of at least 0$"
    with pytest.raises(InputError, match=expected):
        catalogue.make({"name": "fedproto", "guidance": -2.0})
    with pytest.raises(InputError, match=expected):
        FedProto(guidance=-2.0)


def test_filters_have_bounds_too() -> None:
    with pytest.raises(InputError, match=r"^server_filter.max_theta is 0.0; expected a number above 0$"):
        InCo(max_theta=0.0)
    with pytest.raises(InputError, match=r"^server_filter.max_theta is 0.0; expected a number above 0$"):
        catalogue.make_filter({"name": "inco", "max_theta": 0.0})


def test_the_catalogue_lists_bounds_and_plain_types() -> None:
    guidance, *_ = catalogue.methods()["fedproto"].options
    assert (guidance.type, guidance.bounds) == ("float", {"ge": 0, "degenerate": 0})
    epochs = next(option for option in catalogue.methods()["fedprox"].options if option.name == "epochs")
    assert (epochs.type, epochs.bounds) == ("list[int] | None", {"ge": 0})
