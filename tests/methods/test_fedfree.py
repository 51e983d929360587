"""Rounds of FedFree: uploads and downloads, bytes, events and options."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from polyfed import catalogue, testing
from polyfed.core.client import weights_of
from polyfed.core.codec import decode
from polyfed.core.method import Method
from polyfed.core.payload import Payload
from polyfed.core.server import Event, Server
from polyfed.methods.fedfree.entropy import weight_entropy
from polyfed.methods.fedfree.layer_messages import unpack_layers
from polyfed.methods.fedfree.layer_transfer import MappedLayers
from polyfed.methods.fedfree.layers import Layer, find_layers
from polyfed.methods.fedfree.method import FedFree
from polyfed.models import build
from polyfed.testing.engine_wrappers import RecordingEngine
from polyfed.testing.rounds import InMemoryClients, Outcome, run_rounds
from polyfed.testing.toy_federation import ToyFederation

FLOAT = 4
UP, DOWN = "layers_up", "layers_down"


def events_of(fields: dict[str, Any], **options: Any) -> tuple[Outcome, list[dict[str, Event]]]:
    """Run FedFree in the toy federation, and return the events of every round by name as well."""
    rounds: list[dict[str, Event]] = []

    class Listening(FedFree):
        def round(self, server: Server, cohort: Any) -> None:
            before = len(server.events)
            super().round(server, cohort)
            rounds.append({str(event["event"]): event for event in server.events[before:]})

    with ToyFederation(FedFree, fields) as toy:
        changed = options.pop("changed", {})
        outcome = toy.run(toy.config(**changed), method=Listening(**fields), **options).checked()
    return outcome, rounds


def listed(event: Event, name: str) -> list[Any]:
    value = event[name]
    assert isinstance(value, list)
    return value


def numbers(model: str, layer: str) -> int:
    """Return the number of parameters of a layer in a model of the toy federation."""
    layers = find_layers(build(model, shape=(1, 8, 8), classes=4), ["conv", "linear"])
    return sum(tensor.numel() for found in layers if found.name == layer for tensor in found.tensors)


LITERAL: dict[str, Any] = {"start": "random", "entropy_range": "own", "candidate_scope": "all_same_type"}
# models of the five clients of the toy federation
TINY4 = ["tiny-cnn", "tiny-resnet", "tiny-mobile", "tiny-mlp", "tiny-cnn"]


# bytes


@pytest.mark.parametrize("k", [1, 2, 9])
def test_bytes_match_the_layers(k: int) -> None:
    outcome, rounds = events_of({"k": k, **LITERAL})
    for stats, events in zip(outcome.round_stats, rounds, strict=True):
        up, down = events[UP], events[DOWN]
        sent = [numbers(TINY4[int(c)], n) for c, n in zip(listed(up, "clients"), listed(up, "layers"), strict=True)]
        assert stats.up == {"layers": FLOAT * sum(sent), "not_finite": 0}
        back = [numbers("tiny-cnn", source) for source in listed(down, "sources")]
        assert stats.down == {"kinds": 0, "layer": 0, "received": FLOAT * sum(back)}
        assert len(listed(down, "clients")) == len(
            set(listed(down, "clients"))
        )  # at most one layer per client for any k
        # min(k, candidates) layers each: the models have 4, 5, 4, 3 and 4
        assert len(sent) == sum(min(k, n) for n in (4, 5, 4, 3, 4))


def test_bytes_by_hand() -> None:
    # the MLP on 8 x 8 pixels and 4 classes: 64 to 128 to 64 to 4
    outcome, rounds = events_of({"k": 2, **LITERAL}, changed={"models": {"group": ["tiny-mlp"]}})
    mlp = 64 * 128 + 128, 128 * 64 + 64, 64 * 4 + 4
    for events, stats in zip(rounds, outcome.round_stats, strict=True):
        index = {"backbone.trunk.layers.2": 0, "backbone.trunk.layers.4": 1, "head": 2}
        assert stats.up["layers"] == FLOAT * sum(mlp[index[n]] for n in listed(events[UP], "layers"))
        assert stats.down["received"] == FLOAT * sum(mlp[index[n]] for n in listed(events[DOWN], "sources"))


@pytest.mark.parametrize("projection", ["flat", "block"])
def test_trimmed_downloads_contain_only_the_values_that_are_used(projection: str) -> None:
    whole, _ = events_of({"projection": projection})
    trim, rounds = events_of({"projection": projection, "trim_download": True})
    assert trim.hash == whole.hash
    assert trim.round_stats[0].down["received"] < whole.round_stats[0].down["received"]
    if projection == "flat":
        down = rounds[0][DOWN]
        both = zip(listed(down, "clients"), listed(down, "layers"), listed(down, "sources"), strict=True)
        models = {name: build(name, shape=(1, 8, 8), classes=4) for name in set(TINY4)}

        def sizes(model: str, layer: str) -> list[int]:
            return [
                t.numel()
                for candidate in find_layers(models[model], ["conv", "linear"])
                if candidate.name == layer
                for t in candidate.tensors
            ]

        least = [sum(map(min, sizes(TINY4[int(c)], own), sizes("tiny-cnn", source))) for c, own, source in both]
        assert trim.round_stats[0].down["received"] == FLOAT * sum(least)


# rounds


def test_kinds_that_the_global_model_lacks_are_not_uploaded() -> None:
    """With a global network without convolutions clients upload none; depthwise ones are not uploaded by default."""
    _, rounds = events_of({"global_model": "tiny-mlp", "k": 9})
    assert {name for events in rounds for name in listed(events[UP], "layers")} == {
        "head",
        "backbone.trunk.layers.2",
        "backbone.trunk.layers.4",
        "backbone.trunk.layers.7",
    }
    depthwise = {"backbone.trunk.blocks.0.0.conv", "backbone.trunk.blocks.1.0.conv"}
    _, rounds = events_of({"k": 9, "global_model": "tiny-mobile"})
    assert not depthwise & {name for events in rounds for name in listed(events[UP], "layers")}
    _, rounds = events_of({"k": 9, "global_model": "tiny-mobile", "layer_types": "conv, linear, depthwise"})
    assert depthwise <= {name for events in rounds for name in listed(events[UP], "layers")}


def test_a_protected_head_is_not_exchanged() -> None:
    _, rounds = events_of({"protect_head": True, "k": 9})
    for events in rounds:
        assert "head" not in listed(events[UP], "layers") and "head" not in listed(events[DOWN], "layers")


def test_without_gain_nothing_is_sent_and_clients_train_locally() -> None:
    """Constant global layers have no entropy, so that every client ends as after local training."""

    class Constant(FedFree):
        def update_layer(self, server: Server, mapped: MappedLayers) -> Layer:
            target = super().update_layer(server, mapped)
            return replace(target, weight=torch.ones_like(target.weight))

    def digests(method: Method) -> list[dict[str, str]]:
        with ToyFederation(FedFree, {}) as toy:
            outcome = toy.run(method=method).checked()
        assert [stats.down.get("received", 0) for stats in outcome.round_stats] == [0, 0]
        assert not any("layer" in stats.down for stats in outcome.round_stats)
        return outcome.after_rounds

    updated = Constant(candidate_scope="updated_only")  # other layers are still random
    assert digests(updated) == digests(catalogue.load("local")())


def test_identical_clients_gain_nothing(linears: Any) -> None:
    """Server and clients start from the same model and do not train: mapped layers are equal, so nothing is sent."""
    maker = linears(settings={"lr": 0.0})
    method = FedFree(candidate_scope="mapped_only")
    outcome = run_rounds(InMemoryClients(method, maker.several([0, 1, 2], [2, 1])), 2).checked()
    assert [stats.down for stats in outcome.round_stats] == [{"kinds": 0}] * 2
    before = weights_of(maker.model())
    for name in "01":
        after = outcome.client(name).weights("model")
        assert all(torch.equal(after[key], before[key]) for key in before)
    layers = unpack_layers(outcome.server["layers"])
    assert all(torch.equal(layer.weight, before[f"{layer.name}.weight"]) for layer in layers)


def test_a_round_by_hand(linears: Any) -> None:
    """Two clients, k = 1, closed form: compute the round again from the uploads."""
    recorder = RecordingEngine()
    maker = linears(features=5, settings={"lr": 0.5})
    clients = maker.several([0, 1, 2], [2, 2, 1], seeds=["a", "b"])
    outcome = run_rounds(
        InMemoryClients(FedFree(k=1, pseudo="expected", server_lr=0.1, **LITERAL), clients), wrap=recorder
    ).checked()
    sent = [
        unpack_layers(decode(message.frames[0])["layers"]) for message in recorder.up if message.steps == ("train",)
    ]
    assert [len(layers) for layers in sent] == [1, 1]
    start = {layer.name: layer for layer in find_layers(maker.model("a"), ["linear"])}
    after = {layer.name: layer for layer in unpack_layers(outcome.server["layers"])}
    for name, layer in start.items():
        mapped = [upload.weight.double() for (upload,) in sent if upload.name == name]
        expected = layer.weight.double()
        if mapped:
            expected = expected - 0.2 * (expected - sum(mapped) / len(mapped))  # g - alpha 2 (g - mean)
        torch.testing.assert_close(after[name].weight, expected.float())
    # downloads: the global layer with more entropy, if it has more than the client's layer
    h = {name: weight_entropy(layer.weight) for name, layer in after.items()}
    for k, (upload,) in enumerate(sent):
        source = max(h, key=lambda name: (h[name], name == "backbone.1"))
        own = outcome.client(str(k)).weights("model")[f"{upload.name}.weight"]
        if h[source] > weight_entropy(upload.weight):
            size = min(own.numel(), after[source].weight.numel())
            assert torch.equal(own.flatten()[:size], after[source].weight.flatten()[:size])
        else:
            assert torch.equal(own, upload.weight)
    assert any(message.steps == ("insert",) for message in recorder.down)


def test_global_layers_start_as_the_mean_of_their_first_uploads(linears: Any) -> None:
    """Two clients, all layers: the mean of the uploads after round 1, a step of rate 0.2 towards them in round 2."""
    recorder = RecordingEngine()
    maker = linears(features=5, settings={"lr": 0.5})
    clients = maker.several([0, 1, 2], [2, 2, 1], seeds=["a", "b"])
    method = FedFree(k=2, pseudo="expected", server_lr=0.1)
    outcome = run_rounds(InMemoryClients(method, clients), 2, wrap=recorder).checked()
    sent = [unpack_layers(decode(up.frames[0])["layers"]) for up in recorder.up if up.steps == ("train",)]
    assert len(sent) == 4
    for layer in unpack_layers(outcome.server["layers"]):
        first, second = (
            torch.stack([u.weight.double() for upload in half for u in upload if u.name == layer.name]).mean(0)
            for half in (sent[:2], sent[2:])
        )
        torch.testing.assert_close(layer.weight, (first - 0.2 * (first - second)).float())
    assert outcome.server["sources"] == {"0": "", "1": ""}


def test_the_most_changed_layers_are_uploaded(linears: Any) -> None:
    client = linears(settings={"lr": 0.5}).client("0", [0, 1, 2])
    before = [layer.clone() for layer in find_layers(client.model, ["linear"])]
    reply = Payload(FedFree(k=1).train(client, Payload({"kinds": "linear"})))
    after = find_layers(client.model, ["linear"])
    changes = [
        sum(float((n - o).square().sum()) for n, o in zip(now.tensors, old.tensors, strict=True))
        / sum(float(o.square().sum()) for o in old.tensors)
        for now, old in zip(after, before, strict=True)
    ]
    (sent,) = unpack_layers(reply["layers"])
    assert sent.index == changes.index(max(changes)) and sent.change == pytest.approx(max(changes))
    assert torch.equal(sent.weight, after[sent.index].weight)


def test_a_frozen_layer_is_not_critical(linears: Any) -> None:
    client = linears(settings={"lr": 0.5}).client("0", [0, 1, 2])
    client.model.backbone.requires_grad_(False)
    (sent,) = unpack_layers(Payload(FedFree(k=1).train(client, Payload({"kinds": "linear"})))["layers"])
    assert sent.name == "head"
    both = unpack_layers(Payload(FedFree(k=2).train(client, Payload({"kinds": "linear"})))["layers"])
    assert [layer.change == 0 for layer in both] == [True, False]


def test_layers_that_are_not_finite_are_counted_and_not_uploaded(linears: Any) -> None:
    client = linears(settings={"epochs": 0}).client("0", [0, 1])
    with torch.no_grad():
        client.model.head.bias[0] = torch.nan
    for selection in ("critical", "random"):
        reply = FedFree(selection=selection).train(client, Payload({"kinds": "linear"}))
        assert [layer.name for layer in unpack_layers(reply["layers"])] == ["backbone.1"]
        assert reply["not_finite"] == 1


def test_random_selection_is_random_and_repeatable() -> None:
    _, first = events_of({"selection": "random", "k": 1}, changed={"rounds": 4})
    _, again = events_of({"selection": "random", "k": 1}, changed={"rounds": 4})
    picked = [listed(events[UP], "layers") for events in first]
    assert picked == [listed(events[UP], "layers") for events in again]
    assert len({names[1] for names in picked}) > 1


def test_clients_that_do_not_participate_exchange_nothing() -> None:
    outcome, rounds = events_of({"k": 1}, selected=lambda number: ("1", "4"))
    for events, stats in zip(rounds, outcome.round_stats, strict=True):
        assert listed(events[UP], "clients") == ["1", "4"]
        assert set(listed(events[DOWN], "clients")) <= {"1", "4"}
        assert {str(item["client"]) for item in stats.uploads} == {"1", "4"}
    assert outcome.ledger.digests.keys() == {"1", "4"}


def test_events_list_the_exchanged_layers() -> None:
    _, rounds = events_of({})
    for events in rounds:
        up, down = events[UP], events[DOWN]
        assert len(listed(up, "clients")) == len(listed(up, "layers")) == len(listed(up, "changes")) == 10
        length = len(listed(down, "clients"))
        assert length == len(listed(down, "layers")) == len(listed(down, "sources")) == len(listed(down, "gains"))
        assert all(gain > 0 for gain in listed(down, "gains"))
        sent = set(zip(listed(up, "clients"), listed(up, "layers"), strict=True))
        assert set(zip(listed(down, "clients"), listed(down, "layers"), strict=True)) <= sent
    assert any(listed(events[DOWN], "clients") for events in rounds)


def test_global_layers_without_uploads_stay_and_updates_are_counted() -> None:
    outcome, rounds = events_of({"k": 1, "layer_types": "linear", "global_model": "tiny-mlp"})
    updates = outcome.server["updates"]
    assert isinstance(updates, Tensor) and min(updates.tolist()) == 0
    with ToyFederation(FedFree, {}) as toy:
        start = find_layers(toy.federation(toy.config()).common_model("tiny-mlp"), ["linear"])
    for count, before, after in zip(updates.tolist(), start, unpack_layers(outcome.server["layers"]), strict=True):
        assert torch.equal(before.weight, after.weight) == (count == 0)
    assert max(updates.tolist()) == len(rounds)


SETTINGS: list[dict[str, Any]] = [
    {"pseudo": "expected", "remainder": "zero", "projection": "block"},
    {"sharing": "average", "selection": "random"},
    {"recalibrate_bn": True, "trim_download": True, "protect_head": True, "entropy": "tsallis"},
    {"layer_types": "depthwise,conv", "global_model": "tiny-mobile", "candidate_scope": "mapped_only", "k": 3},
    {"entropy": "collision", "server_steps": 3, "pseudo_batch": 8},
    LITERAL,
]
CHECKS = ["independent_of_client_order", "invalid_messages_refused", "failing_clients_tolerated"]


@pytest.mark.parametrize("fields", SETTINGS, ids=lambda fields: "-".join(fields))
def test_options_pass_the_battery(fields: dict[str, Any]) -> None:
    for check in CHECKS:
        testing.run_check(check, FedFree, fields)


def test_recalibration_works_with_a_single_sample() -> None:
    testing.run_check("client_with_one_sample", FedFree, {"recalibrate_bn": True})
