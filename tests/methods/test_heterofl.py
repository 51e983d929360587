"""HeteroFL and Federated Dropout: slices by width, label masks, the scaler, static BatchNorm, and traffic."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.methods.sub_models import HALF, PLAIN, WHOLE, replies, server_of, sizes
from torch import Tensor

from polyfed import catalogue
from polyfed.core.client import weights_of
from polyfed.core.payload import Payload
from polyfed.core.shared_model import cut_of
from polyfed.errors import InputError
from polyfed.methods.fed_dropout import FedDropout
from polyfed.methods.fedavg import FedAvg
from polyfed.methods.heterofl import HeteroFL, present
from polyfed.models import build
from polyfed.models.slicing import PooledStatistics, divided, extract
from polyfed.testing.engine_wrappers import RecordingEngine
from polyfed.testing.rounds import Outcome
from polyfed.testing.toy_federation import CLASS_COUNTS, ToyFederation
from polyfed.training.batchnorm import by_batch_statistics

FLOAT = 4


# averaging


@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_with_all_widths_1_it_is_bit_identical_to_fedavg(weights: Any) -> None:
    some = {1: ("0", "1", "2"), 2: ("1", "3"), 3: ("0", "4")}
    with ToyFederation(HeteroFL, PLAIN) as toy:
        config = toy.config(models={"group": [WHOLE]}, rounds=3)
        slices = toy.run(config, method=HeteroFL(weights=weights, **PLAIN), selected=lambda n: some[n]).checked()
        whole = toy.run(config, method=FedAvg(weights=weights), selected=lambda n: some[n]).checked()
        static = toy.run(
            config,
            method=HeteroFL(weights=weights, mask_absent_classes=False, clip_norm=None, statistics="finish"),
            selected=lambda n: some[n],
        ).checked()
    one, other, third = (outcome.server["model"] for outcome in (slices, whole, static))
    assert isinstance(one, dict) and isinstance(other, dict) and isinstance(third, dict)
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    trained = [name for name, _ in build(WHOLE, shape=(1, 8, 8), classes=4).named_parameters()]
    # statistics do not enter training, so that a policy for them changes no weight
    assert all(torch.equal(third[name], other[name]) for name in trained)


@pytest.mark.parametrize("method", [HeteroFL, FedDropout])
def test_a_single_narrow_client_changes_its_positions_only(method: Any) -> None:
    """At a rate of 1/16 only the first ceil(n / 16) channels change; all other positions are bit-identical."""
    group = ["tiny-resnet@0.0625", WHOLE]
    with ToyFederation(method, {"mask_absent_classes": False}) as toy:
        config = toy.config(models={"group": group}, rounds=1)
        before = server_of(toy, models={"group": group}).memory.weights("model")
        outcome = toy.run(config, selected=lambda number: ("0",)).checked()
        server = server_of(toy, models={"group": group})
        server.round = 1
        places = cut_of(server, "0", before, method().rule(server, "0"))
    after: Any = outcome.server["model"]
    changed = 0
    for name, old in before.items():
        untouched = torch.ones_like(old, dtype=torch.bool)
        index = places[name]
        if old.ndim > 1:
            rows = torch.arange(old.shape[0]) if index[0] is None else index[0]
            columns = torch.arange(old.shape[1]) if index[1] is None else index[1]
            assert len(rows) in (old.shape[0], math.ceil(old.shape[0] / 16))
            untouched[rows[:, None], columns] = False
        elif old.ndim == 1:
            untouched[slice(None) if index[0] is None else index[0]] = False
        assert torch.equal(after[name][untouched], old[untouched])
        changed += int((after[name] != old).sum())
    assert changed > 0


def test_a_position_is_the_mean_over_its_holders() -> None:
    with ToyFederation(HeteroFL, {**PLAIN, "weights": "samples"}) as toy:
        recorder = RecordingEngine()
        outcome = toy.run(toy.config(CLASS_COUNTS[:2], rounds=1), wrap=recorder).checked()
        server = server_of(toy)
    received: Any = outcome.server["model"]
    half, whole = (replies(recorder, "train")[k].weights("model")["head.weight"] for k in "01")
    n = [sum(share) for share in CLASS_COUNTS[:2]]
    kept = half.shape[1]
    expected = whole.clone()
    expected[:, :kept] = (n[0] * half + n[1] * whole[:, :kept]) / sum(n)
    torch.testing.assert_close(received["head.weight"], expected)
    columns = cut_of(server, "0", received)["head.weight"][1]
    assert columns is not None and columns.tolist() == list(range(kept))


# label masks


def test_masked_logits_by_hand(linears: Any) -> None:
    # Classes 0 and 1 are there, 2 is not; logits (ln 4, 0, 5) for class 0. At 0: -ln(4 / (4 + 1 + 1)) = ln 1.5.
    # At -inf: -ln(4 / (4 + 1)) = ln 1.25.
    client = linears().client("0", [0, 1, 1])
    logits = torch.tensor([[math.log(4), 0.0, 5.0]])
    losses = []
    for value in (0, "-inf"):
        masked = HeteroFL(mask_value=value).masked(client, logits)
        losses.append(torch.nn.functional.cross_entropy(masked, torch.tensor([0])).item())
    assert losses == pytest.approx([math.log(1.5), math.log(1.25)], rel=1e-6)
    assert torch.equal(HeteroFL(mask_absent_classes=False).masked(client, logits), logits)
    assert present(client).tolist() == [True, True, False]


@pytest.mark.parametrize("value", [0, "-inf"])
def test_rows_of_absent_classes_stay_out_of_the_mean(value: Any) -> None:
    # Clients 0 and 3 have classes {0, 1} and {0, 3}: no client has row 2, only client 0 has row 1.
    with ToyFederation(HeteroFL, {"mask_value": value}) as toy:
        config = toy.config(models={"group": [WHOLE]}, rounds=1)
        before = server_of(toy, models={"group": [WHOLE]}).memory.weights("model")
        recorder = RecordingEngine()
        outcome = toy.run(config, wrap=recorder, selected=lambda number: ("0", "3")).checked()
    after: Any = outcome.server["model"]
    for name in ("head.weight", "head.bias"):
        assert torch.equal(after[name][2], before[name][2])
        own = [replies(recorder, "train")[k].weights("model")[name] for k in "03"]
        torch.testing.assert_close(after[name][1], own[0][1])
        torch.testing.assert_close(after[name][0], (own[0][0] + own[1][0]) / 2)


def test_accuracy_among_own_classes_is_also_measured(linears: Any) -> None:
    with ToyFederation(HeteroFL, {"masked_accuracy": True}) as toy:
        outcome = toy.run(evaluate=True).checked()
    plain, masked = outcome.accuracy["global"], outcome.accuracy["global by own classes"]
    assert plain.keys() == masked.keys() and plain != masked
    client = linears().client("0", [0, 1, 1])
    client.state.update({"rate": 1.0, "by_batch": False})
    answers = HeteroFL().predict_own_classes(client, torch.rand(50, 1, 1, 4, generator=torch.Generator()))
    assert set(answers.argmax(1).tolist()) <= {0, 1}


# the scaler


def test_the_scaler_divides_hidden_layers_inside_its_context(linears: Any) -> None:
    # two layers: logits = W2 ((W1 x + b1) / r) + b2
    model = linears().model()
    x = torch.rand(5, 1, 1, 4, generator=torch.Generator().manual_seed(0))
    names = list(model.state_dict())
    plain = model(x)
    with divided(model, 0.25):
        scaled = model(x)
        assert list(model.state_dict()) == names
    torch.testing.assert_close(scaled, model.head(model.features(x) * 4))
    assert torch.equal(model(x), plain)
    with divided(model, 1.0):
        assert torch.equal(model(x), plain)


def test_the_scaler_acts_on_narrow_clients_while_they_train() -> None:
    trained: dict[str, dict[str, Payload]] = {}
    with ToyFederation(HeteroFL, {}) as toy:
        config = toy.config(CLASS_COUNTS[:2], models={"group": ["tiny-cnn@0.5", "tiny-cnn"]}, rounds=1)
        for kind in ("training", "off"):
            recorder = RecordingEngine()
            toy.run(config, method=HeteroFL(scaler=kind), wrap=recorder).checked()
            trained[kind] = replies(recorder, "train")
    for client, same in (("0", False), ("1", True)):  # half of the width, and all of it
        one, other = (trained[kind][client].weights("model")["head.weight"] for kind in ("training", "off"))
        assert torch.equal(one, other) == same


def test_the_scaler_is_off_in_evaluation_by_default() -> None:
    with ToyFederation(HeteroFL, {}) as toy:
        federation = toy.federation(toy.config(models={"group": ["tiny-cnn@0.5", "tiny-cnn"]}))
        client = federation.make_client("0")
    x = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    msg = Payload({"model": weights_of(client.model), "rate": 0.5})
    for kind in ("training", "always"):
        method = HeteroFL(scaler=kind, bn="average")
        method.adopt(client, msg)
        with divided(client.model, 0.5 if kind == "always" else 1.0):
            expected = client.model(x)
        assert torch.equal(method.predict(client, x), expected)


# BatchNorm


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(2, 6), min_size=1, max_size=4), st.integers(0, 1000))
def test_pooled_statistics_are_those_of_all_samples(counts: list[int], seed: int) -> None:
    stream = torch.Generator().manual_seed(seed)
    before = {"n.running_mean": torch.zeros(4), "n.running_var": torch.ones(4)}
    pooled, everything = PooledStatistics(before), []
    places = {name: (torch.tensor([0, 2, 3]),) for name in before}  # no client holds position 1
    for count in counts:
        x = torch.randn(count, 3, generator=stream) * 3 + 1
        everything.append(x)
        own = {"n.running_mean": x.mean(0), "n.running_var": x.var(0, unbiased=False)}
        pooled.add(own, places, count)
    actual, union = pooled.result(), torch.cat(everything)
    for name, want in (("n.running_mean", union.mean(0)), ("n.running_var", union.var(0, unbiased=False))):
        torch.testing.assert_close(actual[name][[0, 2, 3]], want, rtol=1e-4, atol=1e-5)
        assert actual[name][1] == before[name][1]


def test_statistics_are_measured_by_every_client_per_architecture() -> None:
    with ToyFederation(HeteroFL, {}) as toy:
        recorder = RecordingEngine()
        outcome = toy.run(toy.config(rounds=1), wrap=recorder, evaluate=True).checked()
        federation = toy.federation(toy.config())
        server = federation.server(federation.profiles())
        server.state = outcome.server
    sent = replies(recorder, "measure")
    assert sent.keys() == {"0", "1", "2", "3", "4"}
    name = "backbone.trunk.stem.0.norm.running_mean"
    for k, group in (("0", "024"), ("1", "13")):  # half width, and whole
        counts = [sum(CLASS_COUNTS[int(c)]) for c in group]
        mean = sum(n * sent[c].weights("statistics")[name] for n, c in zip(counts, group, strict=True)) / sum(counts)
        published = Payload(HeteroFL().publish(server).each[k])
        torch.testing.assert_close(published.weights("statistics")[name], mean)
    assert torch.equal(server.memory.weights("model")[name], torch.zeros(24))  # what clients trained with stays there


def test_statistics_of_a_single_sample_do_not_count() -> None:
    with ToyFederation(HeteroFL, {}) as toy:
        outcome = toy.run(toy.config([(1, 0, 0, 0), CLASS_COUNTS[1]], rounds=1)).checked()
    whole, half = (outcome.server[f"statistics {number}"] for number in (0, 1))
    assert isinstance(half, dict) and isinstance(whole, dict)
    means = [name for name in half if name.endswith("running_mean")]
    assert not any(bool(half[name].any()) for name in means)  # as they were
    assert all(bool(whole[name].any()) for name in means)


def test_batch_statistics_do_not_change_running_statistics() -> None:
    model = build(WHOLE, shape=(1, 8, 8), classes=4)
    x = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    expected = build(WHOLE, shape=(1, 8, 8), classes=4)
    expected.load_state_dict(model.state_dict())
    before = weights_of(model)
    answer = by_batch_statistics(model.eval(), x)
    assert torch.equal(answer, expected.train()(x))
    assert by_batch_statistics(model, x[:1]).shape == (1, 4)
    after = model.state_dict()
    assert after.keys() == before.keys() and all(torch.equal(after[name], before[name]) for name in before)
    assert not any(part.training for part in model.modules())


def test_the_policies_predict_differently() -> None:
    actual = {}
    with ToyFederation(HeteroFL, {}) as toy:
        for bn in ("static-clients", "batch", "average"):
            method = HeteroFL(bn=bn, mask_absent_classes=False)
            outcome = toy.run(toy.config(rounds=1), method=method, evaluate=True).checked()
            client = toy.federation(toy.config(), method).make_client("1")
            server = toy.federation(toy.config(), method).server(toy.federation(toy.config(), method).profiles())
            server.state = outcome.server
            method.adopt(client, Payload(method.publish(server).each["1"]))
            client.model.eval()
            actual[bn] = method.predict(client, client.test.inputs.float() / 255)
            assert client.state["by_batch"] == (bn == "batch")
    answers = list(actual.values())
    assert not any(torch.allclose(answers[a], answers[b]) for a, b in ((0, 1), (0, 2), (1, 2)))


# what travels


def traffic(name: str, fields: dict[str, Any], **changed: Any) -> Outcome:
    with ToyFederation(catalogue.load(name), fields) as toy:
        return toy.run(toy.config(**changed)).checked()


@pytest.mark.parametrize("name", ["heterofl", "fedrolex", "fed-dropout"])
def test_a_slice_is_sent_each_way(name: str) -> None:
    # Clients 0, 2 and 4 have half of the width. A slice is #theta_k numbers, whichever channels are in it.
    (half, half_norms), (whole, norms) = sizes(HALF), sizes(WHOLE)
    theta = FLOAT * (3 * half + 2 * whole)
    first, last = traffic(name, {"statistics": "finish", "mask_absent_classes": False}).round_stats
    assert (first.up, first.down) == ({"model": theta, "samples": 0}, {"model": theta, "rate": 0})
    # measuring statistics: the slice once more down, two vectors for each norm up
    measured = FLOAT * (3 * half_norms + 2 * norms)
    assert (last.up, last.down) == (
        {"model": theta, "samples": 0, "statistics": measured},
        {"model": 2 * theta, "rate": 0},
    )


def test_options_cost_what_they_send() -> None:
    (half, half_norms), (whole, norms) = sizes(HALF), sizes(WHOLE)
    theta, measured = FLOAT * (3 * half + 2 * whole), FLOAT * (3 * half_norms + 2 * norms)
    first, _ = traffic("heterofl", {}).round_stats
    # a byte for each class says whether it is there
    assert first.up == {"model": theta, "samples": 0, "present": 5 * 4, "statistics": measured}
    assert first.down == {"model": 2 * theta, "rate": 0}
    # statistics averaged with the weights travel with them, and a counter of 8 bytes for each of the 4 norms
    first, last = traffic("heterofl", PLAIN).round_stats
    assert first.up == last.up == {"model": theta + measured + 5 * 4 * 8, "samples": 0}
    assert first.down == last.down == {"model": theta + measured + 5 * 4 * 8, "rate": 0}
    first, last = traffic("heterofl", {"bn": "batch", "mask_absent_classes": False}).round_stats
    assert first.up == last.up == {"model": theta, "samples": 0}


def test_models_without_batchnorm_measure_nothing() -> None:
    first, last = traffic("heterofl", {}, models={"group": ["tiny-cnn@0.5", "tiny-cnn"]}).round_stats
    assert "statistics" not in first.up and "statistics" not in last.up


# Federated Dropout


def test_every_client_and_round_draws_its_own_channels() -> None:
    with ToyFederation(FedDropout, {}) as toy:
        server = server_of(toy)
        model = server.memory.weights("model")
        kept: dict[tuple[int, str], Tensor] = {}
        name = "backbone.trunk.stem.0.conv.weight"
        for server.round in range(1, 41):
            for k in "02":
                places = cut_of(server, k, model, FedDropout().rule(server, k))
                own, other = places[name][0], places["backbone.trunk.block.layers.1.conv.weight"][0]
                assert own is not None and other is not None
                assert torch.equal(own, other)  # the layers of a residual sum share their random slice
                assert extract(model, places)[name].shape[0] == 12
                kept[server.round, k] = own
    drawn = torch.stack([torch.bincount(index, minlength=24) for index in kept.values()]).double()
    assert not torch.equal(kept[1, "0"], kept[1, "2"]) and not torch.equal(kept[1, "0"], kept[2, "0"])
    # 80 draws of 12 of 24: each channel 40 times, with a deviation of sqrt(80 / 4) = 4.5
    assert drawn.mean() == 0.5 and (drawn.sum(0) - 40).abs().max() < 4 * 4.5


# together with a server filter, and refusals


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("heterofl", ["tiny-resnet-wide@0.5", "tiny-resnet-wide"]),
        ("fedrolex", ["tiny-resnet-wide@0.5", "tiny-resnet-wide"]),
        ("scalefl", ["tiny-resnet-wide@0.5:2", "tiny-resnet-wide:2-4-6"]),
        ("inclusivefl", ["tiny-resnet10", "tiny-resnet18"]),
    ],
)
def test_a_server_filter_acts_on_their_updates(name: str, group: list[str]) -> None:
    with ToyFederation(catalogue.load(name), {}) as toy:
        runs = [
            toy.experiment(toy.settings(CLASS_COUNTS[:2], rounds=1, models={"group": group}, server_filter=chosen))
            for chosen in ("none", "inco")
        ]
    assert runs[0]["state_hash"] != runs[1]["state_hash"]
    assert runs[0]["bytes"] == runs[1]["bytes"]  # at no cost to the clients


def test_splitting_does_not_apply_to_methods_with_slices() -> None:
    with ToyFederation(HeteroFL, {}) as toy, pytest.raises(InputError, match="slices its models itself"):
        toy.experiment(toy.settings(splitting="width"))
