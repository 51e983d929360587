"""FedFree's decisions on made-up layers: which global layer comes back, which absorbs which; and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from polyfed.core import rng
from polyfed.core.codec import decode, encode, read_header
from polyfed.core.payload import Payload
from polyfed.core.schema import check_header
from polyfed.core.server import Server
from polyfed.errors import InputError, PayloadError
from polyfed.methods.fedfree.layer_messages import Layers, packed, unpacked
from polyfed.methods.fedfree.layers import Layer, layers_of, weight_entropy
from polyfed.methods.fedfree.method import FedFree, Gift, Upload, fewest_layers
from polyfed.models import build
from polyfed.testing.toy_federation import ToyFederation

# who gets what


def net(*weights: Tensor) -> list[Layer]:
    return [Layer(f"g{j}", "linear", j, j / max(1, len(weights) - 1), w) for j, w in enumerate(weights)]


def server() -> Server:
    return Server((), 3, 1, 0, lambda spec: build("tiny-mlp", shape=(1, 8, 8), classes=3))


EVEN, TWO, FLAT = torch.arange(16.0).reshape(4, 4), torch.eye(4) * 0 + torch.tensor([0.0, 0, 1, 1]), torch.ones(4, 4)


def uploads(*weights: Tensor, client: str = "0") -> list[Upload]:
    return [
        Upload(client, Layer(f"l{i}", "linear", i, 0.0, w).outline(), 0, weight_entropy(w))
        for i, w in enumerate(weights)
    ]


def chosen(
    method: FedFree, layers: Sequence[Layer], sent: Sequence[Upload], updates: Sequence[int] = (1, 1, 1)
) -> Any:
    gifts: list[Gift] = method.gifts(server(), layers, updates, sent)
    return [(gift.upload.layer.name, gift.source, gift.gain) for gift in gifts]


def test_the_largest_gain_comes_back() -> None:
    # bits: EVEN 4, TWO 1, FLAT 0. The best of (1, 0) against (1, 4): 4 - 0.
    assert chosen(FedFree(), net(TWO, EVEN), uploads(TWO, FLAT)) == [("l1", 1, 4.0)]
    assert chosen(FedFree(), net(TWO, EVEN), uploads(TWO)) == [("l0", 1, 3.0)]


def test_without_gain_nothing_comes_back() -> None:
    assert chosen(FedFree(), net(EVEN), uploads(EVEN)) == []  # equal layers: exactly 0
    assert chosen(FedFree(), net(TWO, FLAT), uploads(EVEN, TWO)) == []


def test_ties_go_to_the_first_global_layer_then_to_the_first_of_the_client() -> None:
    assert chosen(FedFree(), net(EVEN, EVEN.flip(0)), uploads(FLAT, FLAT)) == [("l0", 0, 4.0)]


def test_layers_of_another_kind_never_pair() -> None:
    conv = replace(net(EVEN)[0], kind="conv", weight=torch.arange(16.0).reshape(4, 4, 1, 1))
    assert chosen(FedFree(), [conv], uploads(FLAT)) == []
    assert chosen(FedFree(returns="random"), [conv], uploads(FLAT)) == []


@pytest.mark.parametrize(
    ("scope", "got"), [("all_same_type", 1), ("mapped_only", 0), ("updated_only", 2), ("updated_only", None)]
)
def test_what_may_come_back(scope: Any, got: int | None) -> None:
    layers = net(TWO, EVEN, TWO.T.contiguous())
    updates = (0, 0, 1) if got is not None else (0, 0, 0)
    found = chosen(FedFree(candidate_scope=scope), layers, uploads(FLAT), updates)
    assert [source for _, source, _ in found] == ([] if got is None else [got])


def test_controls() -> None:
    assert chosen(FedFree(returns="reversed"), net(FLAT, TWO), uploads(EVEN, TWO)) == [("l0", 0, -4.0)]
    assert chosen(FedFree(returns="reversed"), net(EVEN), uploads(FLAT)) == []
    many = [u for c in range(40) for u in uploads(EVEN, TWO, client=str(c))]
    anything = chosen(FedFree(returns="random"), net(FLAT, TWO), many)
    assert len(anything) == 40 and len({(layer, source) for layer, source, _ in anything}) == 4


def test_entropies_are_what_the_field_says() -> None:
    layer = net(TWO)[0]
    assert FedFree().h(layer) == 1.0
    assert FedFree(entropy="collision").h(layer) == 1.0
    assert FedFree(entropy="tsallis").h(layer) == 0.5  # 1 - 2 / 4
    assert FedFree(entropy="tsallis", tsallis_q=3).h(layer) == pytest.approx((1 - 2 / 8) / 2)


# mapping


def test_layers_are_mapped_by_depth_or_by_shape() -> None:
    layers = net(torch.ones(9, 9), torch.ones(2, 2), torch.ones(3, 3))  # depths 0, 1/2, 1
    one = Layer("l", "linear", 0, 0.7, torch.ones(8, 9))
    assert FedFree().partner(one, layers) == 1
    assert FedFree().partner(replace(one, depth=0.25), layers) == 0  # as near to 0 as to 1/2: the first
    assert FedFree().partner(replace(one, depth=1.0), layers) == 2
    assert FedFree(mapping="best_shape").partner(one, layers) == 0
    mixed = [replace(layers[0], kind="conv"), *layers[1:]]
    assert FedFree().partner(replace(one, depth=0.0), mixed) == 1  # the first linear one


def test_the_global_network_is_the_shallowest_with_convolutions() -> None:
    with ToyFederation(FedFree, {}) as toy:
        roster = toy.federation(toy.config()).profiles()
    made = replace(server(), roster=roster)
    assert fewest_layers(made).startswith("tiny-cnn")  # 4 layers; tiny-mlp has 3, but no convolution
    assert fewest_layers(replace(made, roster=(roster[3],))).startswith("tiny-mlp")


# what is refused


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"k": 0}, "method.k is 0"),
        ({"k": -1}, "at least 0"),
        ({"server_lr": 0.0}, "switches FedFree off"),
        ({"server_lr": -0.1}, "method.server_lr is -0.1"),
        ({"bins": 1}, "method.bins is 1"),
        ({"tsallis_q": 1.0}, "other than 1"),
        ({"layer_types": "conv,linaer"}, "did you mean 'linear'"),
    ],
)
def test_wrong_fields(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        FedFree(**fields)


def altered(change: str) -> tuple[dict[str, Any], Any]:
    model = build("tiny-mlp", shape=(1, 8, 8), classes=4)
    fields: dict[str, Any] = {"layers": packed(layers_of(model, ["linear"])[:1])}
    entry = fields["layers"]["000000"]
    if change == "shape":
        entry["weight"] = torch.zeros(3, 3)
    elif change == "without bias":
        del entry["bias"]
    elif change == "without weight":
        del entry["weight"]
    elif change == "other kind":
        entry["kind"] = "conv"
    elif change == "no such layer":
        entry["name"] = "elsewhere"
    elif change == "negative change":
        entry["change"] = -1.0
    elif change == "stray":
        entry["more"] = torch.zeros(1)
    elif change == "empty":
        fields["layers"]["000001"] = {}
    elif change == "a tensor":
        fields["layers"] = torch.zeros(2)
    return fields, model


@pytest.mark.parametrize(
    "change",
    [
        "shape",
        "without bias",
        "without weight",
        "other kind",
        "no such layer",
        "negative change",
        "stray",
        "empty",
        "a tensor",
    ],
)
def test_layers_that_are_not_the_clients_are_refused(change: str) -> None:
    with ToyFederation(FedFree, {}) as toy:
        profile = toy.federation(toy.config()).profiles()[3]
    right, _ = altered("nothing")
    check_header(read_header(encode(right).data), {"layers": Layers()}, FedFree(), profile)
    wrong, _ = altered(change)
    with pytest.raises(PayloadError, match="'layers"):
        check_header(read_header(encode(wrong).data), {"layers": Layers()}, FedFree(), profile)


def test_a_layer_that_the_client_does_not_have_is_refused(linears: Any) -> None:
    client = linears().client("0", [0, 1])
    message = Payload({"layer": "elsewhere", "received": {"weight": torch.zeros(2, 2)}})
    with pytest.raises(PayloadError, match="elsewhere"):
        FedFree().insert(client, message)


def test_layers_are_found_again_in_order() -> None:
    shape = rng.generator("layers")
    layers = [Layer(f"n{12 - i}", "linear", i, i / 11, torch.rand(2, 2, generator=shape)) for i in range(12)]
    back = unpacked(decode(encode({"layers": packed(layers[::-1])}).data)["layers"])
    assert [layer.name for layer in back] == [layer.name for layer in layers]
    assert unpacked({}) == []
