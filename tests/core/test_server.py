"""What a server knows of its clients, states that are copied, and the results of evaluations."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from polyfed.core.cka_signature import signature
from polyfed.core.class_tables import ClassTable
from polyfed.core.client_profile import Profile
from polyfed.core.evaluation import Evaluation
from polyfed.core.payload import detached_copy
from polyfed.core.server import Server
from polyfed.models import SplitModel


def profile(name: str, width: int) -> Profile:
    return Profile(name, "any", (("w", (width, 2), "float32"),), (), 2, 3, 10)


def test_the_smallest_client_has_the_fewest_parameters() -> None:
    server = Server((profile("a", 5), profile("b", 3), profile("c", 4)), 3, 1, 0, nothing)
    assert server.smallest.name == "b"


def nothing(spec: str) -> SplitModel:
    raise AssertionError(f"{spec} is not needed")


def test_a_detached_copy_shares_no_tensor() -> None:
    weights = torch.ones(2, requires_grad=True)
    table = ClassTable(torch.tensor([1]), torch.ones(1, 2), torch.tensor([3]))
    copied: Any = detached_copy({"nested": {"deep": {"w": weights}}, "table": table, "number": 2.5})
    deep = copied["nested"]["deep"]["w"]
    assert deep.tolist() == [1.0, 1.0] and not deep.requires_grad and deep.data_ptr() != weights.data_ptr()
    assert copied["number"] == 2.5
    table.values.zero_()
    assert copied["table"].values.tolist() == [[1.0, 1.0]]


def test_later_evaluations_replace_measures_and_add_others() -> None:
    first = Evaluation({"personal": {"0": (1, 2)}}, {"personal": {"macro_f1": {"0": 0.5}}})
    matrix = torch.eye(2)
    first.update(
        Evaluation({"global": {"0": (3, 4)}}, {"global": {"macro_f1": {"0": 0.25}}}, {"global": {"0": matrix}})
    )
    first.update(Evaluation({"personal": {"0": (2, 2)}}, {"personal": {"macro_f1": {"0": 1.0}}}))
    assert first.counts == {"personal": {"0": (2, 2)}, "global": {"0": (3, 4)}}
    assert first.metrics == {"personal": {"macro_f1": {"0": 1.0}}, "global": {"macro_f1": {"0": 0.25}}}
    assert first.confusion == {"global": {"0": matrix}}


def test_signatures_of_equal_features_are_zero_and_of_others_have_length_one() -> None:
    assert signature(torch.ones(4, 3)).tolist() == [0.0] * 10
    features = torch.tensor([[1.0, 0], [0, 1], [2, 1], [0, 0]])
    for other in (features, -3 * features):  # the linear CKA does not depend on scale and sign
        assert float(signature(features) @ signature(other)) == pytest.approx(1.0)
