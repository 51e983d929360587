"""Message schemas. Every error names the field."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from polyfed.core import ScalarField, TableField, TensorField, TreeField, WeightsField
from polyfed.core.class_tables import ClassTable
from polyfed.core.client_profile import Profile
from polyfed.core.codec import decode, encode
from polyfed.core.message_header import read_header
from polyfed.core.payload import Payload
from polyfed.core.schema import Field, FromMethod, check_header, check_values
from polyfed.errors import PayloadError

HEAD = (("weight", (4, 3), "float32"), ("bias", (4,), "float32"))
PROFILE = Profile("7", "toy", (("head.weight", (4, 3), "float32"), *HEAD[1:]), HEAD, features=3, classes=4, samples=9)
RIGHT_HEAD = {"weight": torch.zeros(4, 3), "bias": torch.zeros(4)}


def refuse(schema: Mapping[str, Field], **fields: Any) -> str | None:
    frame = encode(fields).data
    try:
        check_header(read_header(frame), schema, None, PROFILE)
        check_values(decode(frame), schema, None, PROFILE)
    except PayloadError as error:
        return str(error)
    return None


def test_dimensions_from_options_and_from_functions_of_the_profile() -> None:
    class Toy:
        width = 5

        def rows(self, profile: Profile) -> int:
            return profile.features + 1

    assert FromMethod("width")(Toy(), PROFILE) == 5
    assert FromMethod("rows")(Toy(), PROFILE) == 4


def rows(classes: list[int], width: int, *, counts: bool = False, dtype: torch.dtype = torch.float32) -> ClassTable:
    ones = torch.ones(len(classes), dtype=torch.int64)
    values = torch.zeros(len(classes), width, dtype=dtype)
    return ClassTable(torch.tensor(classes, dtype=torch.int64), values, ones if counts else None)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (TableField("features"), rows([0, 3], 3)),
        (TableField("features"), rows([], 3)),
        (TableField("classes", counts=True), rows([2], 4, counts=True)),
        (TableField(5, dtype=torch.float64), rows([2], 5, dtype=torch.float64)),
        (TensorField(("classes", "features")), torch.zeros(4, 3)),
        (TensorField(("n", "n")), torch.zeros(6, 6)),
        (TensorField(), torch.tensor(1.0)),
        (TensorField((lambda method, profile: profile.samples,), torch.int64), torch.zeros(9, dtype=torch.int64)),
        (WeightsField("head"), RIGHT_HEAD),
        (ScalarField(), 3),
        (ScalarField(), 2.5),
        (ScalarField("text"), "word"),
        (ScalarField("flag"), True),
        (ScalarField(least=0, most="samples"), 9),
        (TensorField((2,), torch.int64, least=0, most="label"), torch.tensor([0, 3])),
        (TensorField((0,), torch.int64, most="label"), torch.zeros(0, dtype=torch.int64)),
        (TableField(counts=True), ClassTable(torch.tensor([1, 2]), torch.zeros(2, 3), torch.tensor([4, 5]))),
        (TreeField(), {"any": {"thing": torch.zeros(2), "n": 3}}),
        (TreeField(), torch.zeros(2)),
        (TreeField(), {}),
    ],
)
def test_valid_messages_pass(kind: Field, value: Any) -> None:
    assert refuse({"f": kind}, f=value) is None


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        (TableField(), torch.zeros(2, 3), "not a class table"),
        (TableField(), 3, "not a class table"),
        (TableField(), rows([0], 5), "5"),
        (TableField(), rows([0, 4], 3), "class 4 of 4"),
        (TableField(), rows([0], 3, counts=True), "has counts"),
        (TableField(counts=True), rows([0], 3), "has no counts"),
        (TableField(), rows([0], 3, dtype=torch.float64), "F64"),
        (TensorField((4,)), torch.zeros(5), r"\(5,\)"),
        (TensorField((4,)), torch.zeros(4, 1), "1 dimensions"),
        (TensorField((4,)), torch.zeros(4, dtype=torch.int64), "I64"),
        (TensorField(("classes",)), torch.zeros(5), "expected 4"),
        (TensorField(("n", "n")), torch.zeros(2, 3), "expected 2"),
        (TensorField((4,)), 1.0, "not a tensor"),
        (TensorField((4,)), rows([0], 3), "not a tensor"),
        (WeightsField("head"), {"weight": torch.zeros(4, 3)}, "lacks 'bias'"),
        (WeightsField("head"), {**RIGHT_HEAD, "more": torch.zeros(1)}, "'more'"),
        (WeightsField("head"), {**RIGHT_HEAD, "more": 1}, "more"),
        (WeightsField("head"), {**RIGHT_HEAD, "more": {}}, "more"),
        (WeightsField("head"), {**RIGHT_HEAD, "bias": torch.zeros(5)}, "'bias' of shape"),
        (WeightsField("head"), {**RIGHT_HEAD, "bias": torch.zeros(4).double()}, "F64"),
        (WeightsField("head"), torch.zeros(4), "lacks"),
        (WeightsField(), RIGHT_HEAD, "head.weight|lacks|which"),
        (ScalarField(), "3", "expected a number"),
        (ScalarField(), True, "expected a number"),
        (ScalarField(), None, "expected a number"),
        (ScalarField(), torch.tensor(3), "expected a number"),
        (ScalarField(), float("nan"), "finite"),
        (ScalarField(), float("-inf"), "finite"),
        (ScalarField(), 10**400, "finite"),
        (ScalarField("text"), 3, "expected a text"),
        (ScalarField("flag"), 1, "expected a flag"),
        (TensorField((2,)), torch.tensor([1.0, float("nan")]), "not finite"),
        (TableField(), ClassTable(torch.tensor([1]), torch.tensor([[0.0, float("inf"), 0.0]])), "not finite"),
        (TreeField(), {"a": {"b": torch.tensor([float("nan")])}}, "f/a/b"),
        (TreeField(), {"a": float("nan")}, "f/a"),
        (ScalarField(most="samples"), 1e300, "at most 9"),
        (ScalarField(most="samples"), 10, "is 10, expected at most 9"),
        (ScalarField(least=0), -1, "is -1, expected at least 0"),
        (TensorField((2,), torch.int32, most="label"), torch.tensor([0, 2**31 - 1], dtype=torch.int32), "at most 3"),
        (TensorField((2,), torch.int32, least=0), torch.tensor([0, -4], dtype=torch.int32), "at least 0"),
        (
            TableField(counts=True),
            ClassTable(torch.tensor([1, 2]), torch.zeros(2, 3), torch.tensor([4, 6])),
            "counts 10 samples, but the client has 9",
        ),
    ],
)
def test_invalid_messages_are_refused_by_name(kind: Field, value: Any, said: str) -> None:
    refusal = refuse({"f": kind}, f=value)
    assert refusal is not None
    assert "'f" in refusal
    assert re.search(said, refusal)


def test_missing_and_unknown_fields() -> None:
    schema = {"a": ScalarField(), "b": TensorField((2,), optional=True)}
    assert refuse(schema, a=1) is None
    assert refuse(schema, a=1, b=torch.zeros(2)) is None
    assert refuse(schema, b=torch.zeros(2)) == "field 'a' is missing"
    assert "'c' is not declared by the step (a, b)" in str(refuse(schema, a=1, c=2))
    assert "it declares none" in str(refuse({}, c=2))
    assert refuse({}) is None


def test_a_free_dimension_has_one_value_per_message() -> None:
    schema = {"x": TensorField(("n", 2)), "y": TensorField(("n",))}
    assert refuse(schema, x=torch.zeros(5, 2), y=torch.zeros(5)) is None
    assert "'y'" in str(refuse(schema, x=torch.zeros(5, 2), y=torch.zeros(4)))


def test_wrong_typed_access_names_the_field() -> None:
    payload = Payload({"t": torch.zeros(1), "n": 3, "flag": True, "mixed": {"a": 1}, "word": "w"})
    for read, name in [
        (payload.tensor, "n"),
        (payload.table, "t"),
        (payload.weights, "mixed"),
        (payload.weights, "n"),
        (payload.number, "flag"),
        (payload.number, "word"),
        (payload.text, "n"),
        (payload.tensor, "absent"),
    ]:
        with pytest.raises(PayloadError, match=f"'{name}'"):
            read(name)
    assert payload.number("n") == 3


def test_a_tree_like_a_sent_field() -> None:
    """A reply must have the names, shapes and types of a field of its call."""
    sent = read_header(encode({"meme": {"w": torch.zeros(2, 3), "b": torch.zeros(3)}}).data)
    schema = {"back": TreeField(like="meme")}

    def check(weights: dict[str, torch.Tensor]) -> None:
        check_header(read_header(encode({"back": weights}).data), schema, None, PROFILE, sent)

    check({"w": torch.ones(2, 3), "b": torch.ones(3)})
    with pytest.raises(PayloadError, match=r"field 'back' has 'w' of shape \(3, 2\)"):
        check({"w": torch.ones(3, 2), "b": torch.ones(3)})
    with pytest.raises(PayloadError, match="field 'back' lacks 'b' of what was sent as 'meme'"):
        check({"w": torch.ones(2, 3)})
    with pytest.raises(PayloadError, match="field 'back' has 'c', which what was sent as 'meme' does not"):
        check({"w": torch.ones(2, 3), "b": torch.ones(3), "c": torch.ones(1)})
    with pytest.raises(PayloadError, match=r"expected \(3,\) \(F32\)"):
        check({"w": torch.ones(2, 3), "b": torch.ones(3, dtype=torch.float64)})
