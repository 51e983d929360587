"""FedFree on artificial layers: mapping, replacements and controls, and what is rejected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from polyfed import catalogue
from polyfed.core import rng
from polyfed.core.codec import decode, encode
from polyfed.core.message_header import read_header
from polyfed.core.payload import Payload
from polyfed.core.schema import check_header
from polyfed.core.server import Server
from polyfed.errors import InputError, PayloadError
from polyfed.federation.user_imports import import_user_modules
from polyfed.methods.fedfree.entropy import weight_entropy
from polyfed.methods.fedfree.global_model import fewest_layers, nearest_in_depth
from polyfed.methods.fedfree.layer_messages import LayersField, pack_layers, unpack_layers
from polyfed.methods.fedfree.layers import Layer, find_layers
from polyfed.methods.fedfree.method import FedFree
from polyfed.methods.fedfree.replacements import UploadedLayer, learned_from_others, with_sources
from polyfed.models import build
from polyfed.testing.toy_federation import ToyFederation

# replacements


def net(*weights: Tensor) -> list[Layer]:
    return [Layer(f"g{j}", "linear", j, j / max(1, len(weights) - 1), w) for j, w in enumerate(weights)]


def server() -> Server:
    return Server((), 3, 1, 0, lambda spec: build("tiny-mlp", shape=(1, 8, 8), classes=3))


def conv(layer: Layer) -> Layer:
    return replace(layer, kind="conv", weight=layer.weight[:, :, None, None])


EVEN, TWO, FLAT = torch.arange(16.0).reshape(4, 4), torch.eye(4) * 0 + torch.tensor([0.0, 0, 1, 1]), torch.ones(4, 4)


def uploads(*weights: Tensor, client: str = "0") -> list[UploadedLayer]:
    return [
        UploadedLayer(client, Layer(f"l{i}", "linear", i, 0.0, w).to_meta(), 0, weight_entropy(w))
        for i, w in enumerate(weights)
    ]


# Eq. 6 with entropies over the range of each layer, and every global layer of the kind
LITERAL: dict[str, Any] = {"entropy_range": "own", "candidate_scope": "all_same_type"}


def chosen(
    method: FedFree,
    layers: Sequence[Layer],
    sent: Sequence[UploadedLayer],
    updates: Sequence[int] = (1, 1, 1),
    sources: Mapping[str, str] | None = None,
) -> Any:
    at = server()
    at.state = {"updates": torch.tensor(updates), "sources": dict(sources or {})}
    replacements = method.choose_replacements(at, method.candidates(at, layers, sent))
    return [(chosen.upload.layer.name, chosen.source, chosen.gain) for chosen in replacements]


def test_the_largest_gain_is_chosen() -> None:
    # bits: EVEN 4, TWO 1, FLAT 0. The best of (1, 0) against (1, 4): 4 - 0.
    assert chosen(FedFree(**LITERAL), net(TWO, EVEN), uploads(TWO, FLAT)) == [("l1", 1, 4.0)]
    assert chosen(FedFree(**LITERAL), net(TWO, EVEN), uploads(TWO)) == [("l0", 1, 3.0)]


def test_without_gain_nothing_is_chosen() -> None:
    assert chosen(FedFree(**LITERAL), net(EVEN), uploads(EVEN)) == []  # equal layers: exactly 0
    assert chosen(FedFree(**LITERAL), net(TWO, FLAT), uploads(EVEN, TWO)) == []


def test_ties_go_to_the_first_global_layer_then_to_the_first_of_the_client() -> None:
    assert chosen(FedFree(**LITERAL), net(EVEN, EVEN.flip(0)), uploads(FLAT, FLAT)) == [("l0", 0, 4.0)]


def test_layers_of_another_kind_never_pair() -> None:
    assert chosen(FedFree(**LITERAL), [conv(net(EVEN)[0])], uploads(FLAT)) == []


@pytest.mark.parametrize(
    ("scope", "expected"), [("all_same_type", 1), ("mapped_only", 0), ("updated_only", 2), ("updated_only", None)]
)
def test_candidate_scopes(scope: Any, expected: int | None) -> None:
    layers = net(TWO, EVEN, TWO.T.contiguous())
    updates = (0, 0, 1) if expected is not None else (0, 0, 0)
    method = FedFree(entropy_range="own", candidate_scope=scope)
    replacements = chosen(method, layers, uploads(FLAT), updates)
    assert [source for _, source, _ in replacements] == ([] if expected is None else [expected])


@pytest.mark.parametrize(
    ("sources", "sent"),
    [({}, []), ({"0": "0"}, []), ({"1": "7"}, []), ({"0": "7"}, ["l0"]), ({"0": ""}, ["l0"])],
    ids=["nobody", "the client itself", "another layer", "another client", "several clients"],
)
def test_partners_sends_only_the_mapped_layer_if_another_client_has_taught_it(
    sources: Mapping[str, str], sent: list[str]
) -> None:
    # both global layers would be a gain; uploads are mapped to layer 0 and come from client "0"
    method = FedFree(entropy_range="own", candidate_scope="partners")
    replacements = chosen(method, net(TWO, EVEN), uploads(FLAT), sources=sources)
    assert [(layer, source) for layer, source, _ in replacements] == [(layer, 0) for layer in sent]


def test_sources_are_one_client_or_several() -> None:
    one, other = uploads(FLAT, client="a"), uploads(FLAT, client="b")
    assert with_sources({}, one) == {"0": "a"}
    assert with_sources({"0": "a"}, one) == {"0": "a"}
    assert with_sources({"0": "a"}, other) == with_sources({}, [*one, *other]) == {"0": ""}
    assert with_sources({"0": ""}, one) == {"0": ""}
    assert learned_from_others({"0": ""}, 0, "a") and learned_from_others({"0": "b"}, 0, "a")
    assert not learned_from_others({"0": "a"}, 0, "a") and not learned_from_others({}, 0, "a")


def control(name: str) -> FedFree:
    import_user_modules(["polyfed.controls.fedfree"])
    method = catalogue.make({"name": name, "start": "random", **LITERAL})
    assert isinstance(method, FedFree)
    return method


def test_controls_of_the_choice() -> None:
    reversed_gain, random_choice = control("fedfree-reversed-gain"), control("fedfree-random-replacement")
    assert chosen(reversed_gain, net(FLAT, TWO), uploads(EVEN, TWO)) == [("l0", 0, -4.0)]
    assert chosen(reversed_gain, net(EVEN), uploads(FLAT)) == []
    many = [u for c in range(40) for u in uploads(EVEN, TWO, client=str(c))]
    choices = chosen(random_choice, net(FLAT, TWO), many)
    assert len(choices) == 40 and len({(layer, source) for layer, source, _ in choices}) == 4
    assert chosen(random_choice, [conv(net(EVEN)[0])], uploads(FLAT)) == []


def test_a_control_evaluates_before_replacement() -> None:
    results = []
    for method in (FedFree, type(control("fedfree-before-replacement"))):
        with ToyFederation(method, {"start": "random", **LITERAL}) as toy:
            results.append(toy.experiment(toy.settings(rounds=1)))
    published, before = results
    assert published["state_hash"] == before["state_hash"]
    assert published["accuracy"] != before["accuracy"]


def test_a_control_keeps_the_initial_global_layers() -> None:
    with ToyFederation(FedFree, {}) as toy:
        outcome = toy.run(method=control("fedfree-frozen-server")).checked()
        initial = find_layers(toy.federation(toy.config()).common_model("tiny-cnn"), ["conv", "linear"])
    layers = unpack_layers(outcome.server["layers"])
    assert all(torch.equal(a.weight, b.weight) for a, b in zip(layers, initial, strict=True))


def test_the_option_selects_the_entropy() -> None:
    layer = net(TWO)[0]
    assert FedFree().entropy_of(layer) == 1.0
    assert FedFree(entropy="collision").entropy_of(layer) == 1.0
    assert FedFree(entropy="tsallis").entropy_of(layer) == 0.5  # 1 - 2 / 4
    assert FedFree(entropy="tsallis", tsallis_q=3).entropy_of(layer) == pytest.approx((1 - 2 / 8) / 2)


# mapping


def test_layers_are_mapped_by_relative_depth() -> None:
    layers = net(torch.ones(9, 9), torch.ones(2, 2), torch.ones(3, 3))  # depths 0, 1/2, 1
    layer = Layer("l", "linear", 0, 0.7, torch.ones(8, 9))
    assert nearest_in_depth(layer, layers) == 1
    assert nearest_in_depth(replace(layer, depth=0.25), layers) == 0  # as near to 0 as to 1/2: the first
    assert nearest_in_depth(replace(layer, depth=1.0), layers) == 2
    mixed = [replace(layers[0], kind="conv"), *layers[1:]]
    assert nearest_in_depth(replace(layer, depth=0.0), mixed) == 1  # the first linear one


def test_the_global_network_is_the_shallowest_with_convolutions() -> None:
    with ToyFederation(FedFree, {}) as toy:
        roster = toy.federation(toy.config()).profiles()
    all_models = replace(server(), roster=roster)
    assert fewest_layers(all_models).startswith("tiny-cnn")  # 4 layers; tiny-mlp has 3, but no convolution
    assert fewest_layers(replace(all_models, roster=(roster[3],))).startswith("tiny-mlp")


# what is rejected


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"k": 0}, "method.k is 0"),
        ({"server_lr": 0.0}, "method.server_lr is 0"),
        ({"server_lr": -0.1}, "method.server_lr is -0.1"),
        ({"pseudo_batch": 0}, "method.pseudo_batch is 0"),
        ({"tsallis_q": 1.0}, "other than 1"),
        ({"layer_types": "conv,linaer"}, "did you mean 'linear'"),
    ],
)
def test_wrong_options(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        FedFree(**fields)


def altered(change: str) -> tuple[dict[str, Any], Any]:
    model = build("tiny-mlp", shape=(1, 8, 8), classes=4)
    fields: dict[str, Any] = {"layers": pack_layers(find_layers(model, ["linear"])[:1])}
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
def test_layers_that_do_not_match_the_model_are_rejected(change: str) -> None:
    with ToyFederation(FedFree, {}) as toy:
        profile = toy.federation(toy.config()).profiles()[3]
    right, _ = altered("nothing")
    check_header(read_header(encode(right).data), {"layers": LayersField()}, FedFree(), profile)
    wrong, _ = altered(change)
    with pytest.raises(PayloadError, match="'layers"):
        check_header(read_header(encode(wrong).data), {"layers": LayersField()}, FedFree(), profile)


def test_a_layer_that_the_client_does_not_have_is_rejected(linears: Any) -> None:
    client = linears().client("0", [0, 1])
    message = Payload({"layer": "elsewhere", "received": {"weight": torch.zeros(2, 2)}})
    with pytest.raises(PayloadError, match="elsewhere"):
        FedFree().insert(client, message)


def test_unpacked_layers_are_in_order() -> None:
    shape = rng.generator("layers")
    layers = [Layer(f"n{12 - i}", "linear", i, i / 11, torch.rand(2, 2, generator=shape)) for i in range(12)]
    back = unpack_layers(decode(encode({"layers": pack_layers(layers[::-1])}).data)["layers"])
    assert [layer.name for layer in back] == [layer.name for layer in layers]
    assert unpack_layers({}) == []
