"""Pairing of layers: the expected names for the models of the paper, and the models that are refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyfed.config import parse
from polyfed.config.loading import apply_overrides
from polyfed.errors import InputError
from polyfed.filters.inco import InCo
from polyfed.filters.inco.pairing import find_pairs
from polyfed.methods.fedavg import FedAvg
from polyfed.methods.local import Local
from polyfed.models.slicing import skeleton
from polyfed.models.split import SplitModel
from polyfed.testing.toy_federation import ToyFederation

TRUNK = "backbone.trunk"


def model(name: str, size: int = 32) -> SplitModel:
    return skeleton(name, shape=(3, size, size), classes=10)


def conv(stage: int, block: int, number: int) -> str:
    return f"{TRUNK}.stages.{stage}.{block}.layers.{number}.conv.weight"


@pytest.mark.parametrize("pairing", ["auto", "resnet_ref"])
@pytest.mark.parametrize("name", ["resnet26", "tiny-resnet26"])
def test_resnet26_as_in_the_released_code(name: str, pairing: Any) -> None:
    expected = [(conv(s, b, c), conv(s, 0, 1)) for s in range(4) for b in (1, 2) for c in (0, 1)]
    assert len(expected) == 16
    assert list(find_pairs(model(name), pairing)) == expected


def test_resnet26_as_in_the_text() -> None:
    # In stage 1 the first convolution of the first block already has the common shape; in others the second one has.
    every = {s: [conv(s, b, c) for b in range(3) for c in (0, 1)] for s in range(4)}
    expected = [(name, every[0][0]) for name in every[0][1:]]
    expected += [(name, every[s][1]) for s in (1, 2, 3) for name in every[s][2:]]
    assert list(find_pairs(model("resnet26"), "resnet_paper")) == expected


@pytest.mark.parametrize("pairing", ["auto", "vit_norm"])
def test_vit_of_12_blocks_has_12_targets(pairing: Any) -> None:
    blocks = [f"{TRUNK}.blocks.{k}" for k in range(12)]
    expected = [(f"{block}.norm2.weight", f"{block}.norm1.weight") for block in blocks]
    assert list(find_pairs(model("vit-s-12", 224), pairing)) == expected


def test_the_generic_rule_goes_by_kind_and_shape() -> None:
    pairs = dict(find_pairs(model("tiny-vit-2"), "generic"))
    first = f"{TRUNK}.blocks.0"
    assert pairs[f"{TRUNK}.blocks.1.norm2.weight"] == f"{first}.norm1.weight"
    assert pairs[f"{TRUNK}.blocks.1.attention.key.weight"] == f"{first}.attention.query.weight"
    assert f"{first}.attention.query.weight" not in pairs


@given(
    st.sampled_from(["resnet10", "resnet18", "resnet34", "resnet50", "tiny-resnet26", "tiny-resnet-wide"]),
    st.sampled_from(["auto", "resnet_ref", "resnet_paper", "generic"]),
)
@settings(max_examples=25, deadline=None)
def test_pairs_have_one_shape_and_anchors_are_no_targets(name: str, pairing: Any) -> None:
    whole = model(name)
    tensors = whole.state_dict()
    pairs = find_pairs(whole, pairing)
    targets, anchors = [t for t, _ in pairs], {a for _, a in pairs}
    assert len(set(targets)) == len(targets)
    assert not anchors & set(targets)
    order = list(tensors)
    for target, anchor in pairs:
        assert tensors[target].shape == tensors[anchor].shape
        assert order.index(anchor) < order.index(target)
        assert target.split(".")[:4] == anchor.split(".")[:4]  # of one stage
        assert "shortcut" not in target or pairing == "generic"


@pytest.mark.parametrize("name", ["resnet10", "tiny-resnet10"])
def test_a_model_of_single_blocks_has_no_pairs_in_the_released_code(name: str) -> None:
    assert find_pairs(model(name), "resnet_ref") == ()
    assert find_pairs(model(name), "resnet_paper") == ((conv(0, 0, 1), conv(0, 0, 0)),)


def test_a_pairing_for_another_kind_of_model_finds_nothing() -> None:
    assert find_pairs(model("tiny-vit-2"), "resnet_ref") == ()
    assert find_pairs(model("tiny-vit-2"), "resnet_paper") == ()
    assert find_pairs(model("tiny-resnet26"), "vit_norm") == ()


def test_a_model_without_stages_is_refused() -> None:
    with pytest.raises(InputError, match="no stages or blocks"):
        find_pairs(model("tiny-mlp"))


# the pairs of a server model


def refusal(settings: dict[str, Any], group: Sequence[str] | str, **fields: Any) -> str:
    with ToyFederation(FedAvg, {}) as toy:
        toy.models = group if isinstance(group, str) else list(group)
        federation = toy.federation(toy.config(server_filter={"name": "inco", **fields}, **settings))
        with pytest.raises(InputError) as caught:
            federation.check(federation.profiles())
    return str(caught.value)


def test_a_family_without_pairs_is_refused_in_one_sentence() -> None:
    said = refusal({}, ["tiny-resnet10"])
    assert said == (
        "server_filter.pairing 'auto' finds no two layers of one stage with equal shapes in tiny-resnet10; use a "
        "deeper server model, or pairing: generic"
    )


def test_a_model_without_stages_is_refused_before_round_1() -> None:
    assert "has no stages or blocks" in refusal({}, ["tiny-mlp"])


def test_a_method_without_a_server_model_is_refused() -> None:
    with ToyFederation(Local, {}) as toy:
        toy.models = ["tiny-resnet14"]
        federation = toy.federation(toy.config(server_filter="inco"))
        with pytest.raises(InputError, match=r"one server model, which Local does not have; use it with .*fedavg"):
            federation.check(federation.profiles())


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({"name": "inco", "rule": "theorm"}, "theorem"),
        ({"name": "inco", "rulee": "theorem"}, "rule"),
        ({"name": "inko"}, "inco"),
        ({"name": "inco", "max_theta": -1.0}, "max_theta is -1.0"),
    ],
)
def test_wrong_fields_are_refused_with_a_suggestion(given_: dict[str, Any], said: str) -> None:
    with ToyFederation(FedAvg, {}) as toy:
        toy.models = ["tiny-resnet18"]
        with pytest.raises(InputError, match=said):
            toy.federation(toy.config(server_filter=given_))


def test_yaml_reads_the_rule_off_as_false() -> None:
    raw = apply_overrides({"method": "fedavg"}, ["server_filter={name: inco, rule: off}"])
    assert raw["server_filter"]["rule"] is False
    chosen = parse(raw).server_filter
    assert isinstance(chosen, dict) and chosen["rule"] == "off"


def test_separate_architectures_are_paired_independently() -> None:
    # An architecture without pairs (single blocks) is skipped; the names of the others have their prefix.
    with ToyFederation(FedAvg, {}) as toy:
        toy.models = ["tiny-resnet10", "tiny-resnet18"]
        federation = toy.federation(toy.config(server_filter="inco", splitting="architecture"))
        federation.check(federation.profiles())
        server = federation.server(federation.profiles())
        filter_ = server.filter
        assert isinstance(filter_, InCo)
        pairs = filter_.pairs(server)
    assert len(pairs) == 8
    assert {target.split(".")[0] for target, _ in pairs} == {"1"}
