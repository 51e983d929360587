"""FedFree's protocol: what goes up and down, to whom, how many bytes, and what the options change."""

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
from polyfed.methods.fedfree.layer_messages import unpacked
from polyfed.methods.fedfree.layer_transfer import Gathered
from polyfed.methods.fedfree.layers import Layer, layers_of, weight_entropy
from polyfed.methods.fedfree.method import FedFree
from polyfed.models import build
from polyfed.testing.engine_wrappers import RecordingEngine
from polyfed.testing.rounds import InMemoryClients, Outcome, run_rounds
from polyfed.testing.toy_federation import ToyFederation

FLOAT = 4
UP, DOWN = "layers_up", "layers_down"


def events_of(fields: dict[str, Any], **options: Any) -> tuple[Outcome, list[dict[str, Event]]]:
    """A run in the toy federation with the events of every round, by name."""
    seen: list[dict[str, Event]] = []

    class Listening(FedFree):
        def round(self, server: Server, cohort: Any) -> None:
            before = len(server.events)
            super().round(server, cohort)
            seen.append({str(event["event"]): event for event in server.events[before:]})

    with ToyFederation(FedFree, fields) as toy:
        changed = options.pop("changed", {})
        outcome = toy.run(toy.config(**changed), method=Listening(**fields), **options).checked()
    return outcome, seen


def listed(event: Event, name: str) -> list[Any]:
    value = event[name]
    assert isinstance(value, list)
    return value


def numbers(model: str, layer: str) -> int:
    """Weight and bias of a layer of the toy federation's models."""
    held = next(
        one for one in layers_of(build(model, shape=(1, 8, 8), classes=4), ["conv", "linear"]) if one.name == layer
    )
    return sum(tensor.numel() for tensor in held.tensors)


TINY4 = [
    "tiny-cnn",
    "tiny-resnet",
    "tiny-mobile",
    "tiny-mlp",
    "tiny-cnn",
]  # of the five clients of the toy federation


# bytes


@pytest.mark.parametrize("k", [1, 2, 9])
def test_bytes_are_those_of_the_layers(k: int) -> None:
    outcome, rounds = events_of({"k": k})
    for stats, events in zip(outcome.round_stats, rounds, strict=True):
        up, down = events[UP], events[DOWN]
        sent = [numbers(TINY4[int(c)], n) for c, n in zip(listed(up, "clients"), listed(up, "layers"), strict=True)]
        assert stats.up == {"layers": FLOAT * sum(sent), "not_finite": 0}
        back = [numbers("tiny-cnn", source) for source in listed(down, "sources")]
        assert stats.down == {"kinds": 0, "layer": 0, "received": FLOAT * sum(back)}
        assert len(listed(down, "clients")) == len(set(listed(down, "clients")))  # at most one each, whatever k is
        # min(k, candidates) layers each: the models have 4, 5, 4, 3 and 4
        assert len(sent) == sum(min(k, n) for n in (4, 5, 4, 3, 4))


def test_bytes_by_hand() -> None:
    # the MLP on 8 x 8 pixels and 4 classes: 64 to 128 to 64 to 4
    outcome, rounds = events_of({"k": 2}, changed={"models": {"group": ["tiny-mlp"]}})
    mlp = 64 * 128 + 128, 128 * 64 + 64, 64 * 4 + 4
    for events, stats in zip(rounds, outcome.round_stats, strict=True):
        place = {"backbone.trunk.layers.2": 0, "backbone.trunk.layers.4": 1, "head": 2}
        assert stats.up["layers"] == FLOAT * sum(mlp[place[n]] for n in listed(events[UP], "layers"))
        assert stats.down["received"] == FLOAT * sum(mlp[place[n]] for n in listed(events[DOWN], "sources"))


@pytest.mark.parametrize("projection", ["flat", "block"])
def test_trimmed_downloads_have_only_what_is_used(projection: str) -> None:
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
                for one in layers_of(models[model], ["conv", "linear"])
                if one.name == layer
                for t in one.tensors
            ]

        least = [sum(map(min, sizes(TINY4[int(c)], own), sizes("tiny-cnn", source))) for c, own, source in both]
        assert trim.round_stats[0].down["received"] == FLOAT * sum(least)


# rounds


def test_layers_without_a_partner_are_never_chosen() -> None:
    """A global network without convolutions: nobody sends one, and depthwise ones are sent by nobody by default."""
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


def test_a_protected_head_stays_at_home() -> None:
    _, rounds = events_of({"protect_head": True, "k": 9})
    for events in rounds:
        assert "head" not in listed(events[UP], "layers") and "head" not in listed(events[DOWN], "layers")


def test_no_gain_no_byte_and_not_a_bit_changed() -> None:
    """Where the server's layers are constant they have no entropy, and every client trains as if it were alone."""

    class Constant(FedFree):
        def absorb(self, server: Server, gathered: Gathered) -> Layer:
            target = super().absorb(server, gathered)
            return replace(target, weight=torch.ones_like(target.weight))

    def digests(method: Method) -> list[dict[str, str]]:
        with ToyFederation(FedFree, {}) as toy:
            outcome = toy.run(method=method).checked()
        assert [stats.down.get("received", 0) for stats in outcome.round_stats] == [0, 0]
        assert not any("layer" in stats.down for stats in outcome.round_stats)
        return outcome.after_rounds

    updated = Constant(candidate_scope="updated_only")  # others are still random
    assert digests(updated) == digests(catalogue.load("local")())


def test_identical_clients_gain_nothing(linears: Any) -> None:
    """The server starts from the clients' model and nobody trains: mapped layers are equal, nothing goes down."""
    maker = linears(settings={"lr": 0.0})
    method = FedFree(candidate_scope="mapped_only")
    outcome = run_rounds(InMemoryClients(method, maker.several([0, 1, 2], [2, 1])), 2).checked()
    assert [stats.down for stats in outcome.round_stats] == [{"kinds": 0}] * 2
    before = weights_of(maker.model())
    for name in "01":
        after = outcome.client(name).weights("model")
        assert all(torch.equal(after[key], before[key]) for key in before)
    layers = unpacked(outcome.server["layers"])
    assert all(torch.equal(one.weight, before[f"{one.name}.weight"]) for one in layers)


def test_a_round_by_hand(linears: Any) -> None:
    """Two clients, k = 1, closed form: recomputed from what they sent."""
    recorder = RecordingEngine()
    maker = linears(features=5, settings={"lr": 0.5})
    clients = maker.several([0, 1, 2], [2, 2, 1], seeds=["a", "b"])
    outcome = run_rounds(
        InMemoryClients(FedFree(k=1, pseudo="expected", server_lr=0.1), clients), wrap=recorder
    ).checked()
    sent = [unpacked(decode(seen.frames[0])["layers"]) for seen in recorder.up if seen.steps == ("train",)]
    assert [len(layers) for layers in sent] == [1, 1]
    start = {layer.name: layer for layer in layers_of(maker.model("a"), ["linear"])}  # what `build` gives here
    after = {layer.name: layer for layer in unpacked(outcome.server["layers"])}
    for name, layer in start.items():
        mapped = [one.weight.double() for (one,) in sent if one.name == name]
        expected = layer.weight.double()
        if mapped:
            expected = expected - 0.2 * (expected - sum(mapped) / len(mapped))  # g - alpha 2 (g - mean)
        torch.testing.assert_close(after[name].weight, expected.float())
    # the gifts: of the two global layers the one with more entropy, where that is more than the client's own
    h = {name: weight_entropy(layer.weight) for name, layer in after.items()}
    for k, (one,) in enumerate(sent):
        source = max(h, key=lambda name: (h[name], name == "backbone.1"))
        own = outcome.client(str(k)).weights("model")[f"{one.name}.weight"]
        if h[source] > weight_entropy(one.weight):
            size = min(own.numel(), after[source].weight.numel())
            assert torch.equal(own.flatten()[:size], after[source].weight.flatten()[:size])
        else:
            assert torch.equal(own, one.weight)
    assert any(seen.steps == ("insert",) for seen in recorder.down)


def test_most_changed_layers_go_up(linears: Any) -> None:
    client = linears(settings={"lr": 0.5}).client("0", [0, 1, 2])
    before = [layer.copied() for layer in layers_of(client.model, ["linear"])]
    reply = Payload(FedFree(k=1).train(client, Payload({"kinds": "linear"})))
    after = layers_of(client.model, ["linear"])
    changes = [
        sum(float((n - o).square().sum()) for n, o in zip(now.tensors, old.tensors, strict=True))
        / sum(float(o.square().sum()) for o in old.tensors)
        for now, old in zip(after, before, strict=True)
    ]
    (sent,) = unpacked(reply["layers"])
    assert sent.place == changes.index(max(changes)) and sent.change == pytest.approx(max(changes))
    assert torch.equal(sent.weight, after[sent.place].weight)


def test_a_frozen_layer_is_not_critical(linears: Any) -> None:
    client = linears(settings={"lr": 0.5}).client("0", [0, 1, 2])
    client.model.backbone.requires_grad_(False)
    (sent,) = unpacked(Payload(FedFree(k=1).train(client, Payload({"kinds": "linear"})))["layers"])
    assert sent.name == "head"
    both = unpacked(Payload(FedFree(k=2).train(client, Payload({"kinds": "linear"})))["layers"])
    assert [layer.change == 0 for layer in both] == [True, False]


def test_a_layer_that_is_not_finite_stays_and_is_noted(linears: Any) -> None:
    client = linears(settings={"epochs": 0}).client("0", [0, 1])
    with torch.no_grad():
        client.model.head.bias[0] = torch.nan
    for selection in ("critical", "random"):
        reply = FedFree(selection=selection).train(client, Payload({"kinds": "linear"}))
        assert [layer.name for layer in unpacked(reply["layers"])] == ["backbone.1"]
        assert reply["not_finite"] == 1


def test_random_selection_is_random_and_repeatable() -> None:
    _, first = events_of({"selection": "random", "k": 1}, changed={"rounds": 4})
    _, again = events_of({"selection": "random", "k": 1}, changed={"rounds": 4})
    picked = [listed(events[UP], "layers") for events in first]
    assert picked == [listed(events[UP], "layers") for events in again]
    assert len({names[1] for names in picked}) > 1


def test_absent_clients_are_in_no_event_and_cost_nothing() -> None:
    outcome, rounds = events_of({"k": 1}, selected=lambda number: ("1", "4"))
    for events, stats in zip(rounds, outcome.round_stats, strict=True):
        assert listed(events[UP], "clients") == ["1", "4"]
        assert set(listed(events[DOWN], "clients")) <= {"1", "4"}
        assert {str(item["client"]) for item in stats.left} == {"1", "4"}
    assert outcome.ledger.digests.keys() == {"1", "4"}


def test_events_are_parallel_lists_that_say_what_happened() -> None:
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


def test_untouched_global_layers_stay_and_updates_are_counted() -> None:
    outcome, rounds = events_of({"k": 1, "layer_types": "linear", "global_model": "tiny-mlp"})
    updates = outcome.server["updates"]
    assert isinstance(updates, Tensor) and min(updates.tolist()) == 0
    with ToyFederation(FedFree, {}) as toy:
        start = layers_of(toy.federation(toy.config()).common_model("tiny-mlp"), ["linear"])
    for count, before, after in zip(updates.tolist(), start, unpacked(outcome.server["layers"]), strict=True):
        assert torch.equal(before.weight, after.weight) == (count == 0)
    assert max(updates.tolist()) == len(rounds)


def test_where_clients_are_evaluated() -> None:
    with ToyFederation(FedFree, {}) as toy:
        after_insert = toy.run(toy.config(rounds=1), evaluate=True)
        after_local = toy.run(toy.config(rounds=1), evaluate=True, method=FedFree(eval_point="after_local"))
    with ToyFederation(catalogue.load("local"), {}) as toy:
        alone = toy.run(toy.config(rounds=1), evaluate=True)
    assert after_insert.hash == after_local.hash  # the same run, looked at elsewhere
    assert after_insert.accuracy != alone.accuracy


SETTINGS: list[dict[str, Any]] = [
    {"pseudo": "expected", "remainder": "zero", "projection": "block"},
    {"sharing": "average", "selection": "random", "mapping": "best_shape", "pair_shape": "equal"},
    {"recalibrate_bn": True, "trim_download": True, "protect_head": True, "entropy": "tsallis"},
    {"layer_types": "depthwise,conv", "global_model": "tiny-mobile", "candidate_scope": "mapped_only", "k": 3},
    {"returns": "random", "entropy": "collision", "server_steps": 3, "eval_point": "after_local"},
]
TELLING = ["order_of_clients_is_irrelevant", "wrong_messages_refused_by_name", "failing_clients_survived"]


@pytest.mark.parametrize("fields", SETTINGS, ids=lambda fields: "-".join(fields))
def test_options_pass_the_battery(fields: dict[str, Any]) -> None:
    for check in TELLING:
        testing.run_check(check, FedFree, fields)


def test_one_sample_is_no_reason_to_fail_when_statistics_are_taken_anew() -> None:
    testing.run_check("client_with_one_sample", FedFree, {"recalibrate_bn": True})
