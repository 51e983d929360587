"""CCVR: class statistics, pooling, sampling, and calibration in both modes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from polyfed import catalogue, testing
from polyfed.core import rng
from polyfed.core.class_tables import ClassTable
from polyfed.core.client import weights_of
from polyfed.core.payload import Payload
from polyfed.errors import InputError
from polyfed.methods.ccvr.class_statistics import describe_classes, pool_classes, sample_classes
from polyfed.methods.ccvr.gaussians import Gaussian, describe, pooled, sample
from polyfed.methods.ccvr.method import CCVR
from polyfed.methods.fedavg import FedAvg
from polyfed.testing.engine_wrappers import FaultyEngine
from polyfed.testing.rounds import InMemoryClients, run_rounds
from polyfed.testing.toy_federation import ToyFederation

FAST = {"virtual": 20, "epochs": 2}


def stream(name: str = "test") -> torch.Generator:
    return rng.generator(name)


# statistics


def test_pooling_by_hand() -> None:
    # {0, 2} has mean 1 and variance 2; {7} has mean 7 and, being alone, 0. Together {0, 2, 7}: mean 3 and variance
    # ((0 - 3)^2 + (2 - 3)^2 + (7 - 3)^2) / 2 = 13.
    parts = [describe(torch.tensor([[0.0], [2.0]])), describe(torch.tensor([[7.0]]))]
    assert [float(part.covariance) for part in parts] == [2.0, 0.0]
    whole = pooled(parts)
    assert (whole.count, float(whole.mean), float(whole.covariance)) == (3, 3.0, 13.0)
    # with divisor n the first variance is 1, and the formula for n - 1 gives (1 + 0 + 2 * 4 + 16) / 2 = 12.5
    faulty = pooled([describe(torch.tensor([[0.0], [2.0]]), biased=True), parts[1]])
    assert float(faulty.covariance) == 12.5


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    width=st.integers(1, 6),
    shift=st.floats(0, 100),
    diagonal=st.booleans(),
)
def test_pooled_statistics_are_those_of_all_samples(
    sizes: list[int], width: int, shift: float, diagonal: bool
) -> None:
    noise = stream("parts")
    parts = [torch.randn(n, width, generator=noise) + shift * (k + 1) for k, n in enumerate([*sizes, 1])]
    whole = pooled([describe(part, diagonal=diagonal) for part in parts])
    together = torch.cat(parts).double().numpy()
    covariance = np.atleast_2d(np.cov(together, rowvar=False))
    expected = np.diag(covariance) if diagonal else covariance
    assert whole.count == len(together)
    assert np.allclose(whole.mean, together.mean(0), rtol=1e-5)
    assert np.allclose(whole.covariance, expected, rtol=1e-5, atol=1e-5)


def test_one_sample_has_covariance_0() -> None:
    alone = pooled([describe(torch.tensor([[3.0, -1.0]]))])
    assert alone.count == 1
    assert alone.mean.tolist() == [3.0, -1.0]
    assert alone.covariance.tolist() == [[0.0, 0.0], [0.0, 0.0]]
    drawn = sample(alone, 4000, ridge=0.25, stream=stream())  # the ridge is its whole variance
    assert torch.allclose(drawn.mean(0), torch.tensor([3.0, -1.0]), atol=0.05)
    assert torch.allclose(drawn.var(0), torch.full((2,), 0.25), atol=0.03)


@pytest.mark.parametrize("diagonal", [False, True])
def test_samples_have_the_distribution(diagonal: bool) -> None:
    covariance = torch.tensor([[2.0, 1.2], [1.2, 1.0]]) if not diagonal else torch.tensor([2.0, 1.0])
    drawn = sample(Gaussian(9, torch.tensor([5.0, -5.0]), covariance), 40000, ridge=0.0, stream=stream())
    assert torch.allclose(drawn.mean(0), torch.tensor([5.0, -5.0]), atol=0.05)
    expected = torch.diag(covariance) if diagonal else covariance
    assert torch.allclose(torch.cov(drawn.T), expected, atol=0.06)


def test_singular_covariances_can_be_sampled() -> None:
    # Two samples in ten dimensions: rank 1. Every draw is on the line through them.
    samples = torch.randn(2, 10, generator=stream("two"))
    drawn = sample(describe(samples), 50, ridge=0.0, stream=stream()).double()
    line = (samples[1] - samples[0]).double()
    offset = drawn - samples[0].double()
    along = (offset @ line / (line @ line))[:, None] * line
    assert bool(torch.isfinite(drawn).all())
    assert torch.allclose(offset, along, atol=1e-4)


@pytest.mark.parametrize("diagonal", [False, True])
def test_tables_round_trip_the_statistics(diagonal: bool) -> None:
    x = torch.randn(30, 4, generator=stream("x"))
    y = torch.tensor([0] * 20 + [2] * 9 + [3])
    batches = [(x[:13], y[:13]), (x[13:], y[13:])]
    table = describe_classes(batches, lambda v: 2 * v, 4, diagonal=diagonal)
    assert table.counts is not None and table.counts.tolist() == [20, 9, 1]
    assert table.width == 4 + (4 if diagonal else 16)
    assert torch.allclose(table.values[0, :4], 2 * x[:20].mean(0), atol=1e-5)
    spread = torch.cov((2 * x[:20]).T)
    assert torch.allclose(table.values[0, 4:], torch.diag(spread) if diagonal else spread.flatten(), atol=1e-4)
    assert describe_classes(batches, lambda v: v, 4, min_count=2).classes.tolist() == [0, 2]
    drawn = sample_classes(pool_classes([table, table], 4, diagonal=diagonal), 4, 7, ridge=1e-4, stream=stream())
    assert drawn.inputs.shape == (21, 4)
    assert drawn.labels.tolist() == [0] * 7 + [2] * 7 + [3] * 7
    assert len(sample_classes(pool_classes([], 4), 4, 7, ridge=1e-4, stream=stream())) == 0


# calibration


def test_calibration_corrects_a_biased_head() -> None:
    # Three normal classes in a plane and a head that answers 0 to everything; statistics are all that it gets.
    noise = stream("classes")
    centres = torch.tensor([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
    y = torch.arange(300) % 3
    x = centres[y] + torch.randn(300, 2, generator=noise)
    head = nn.Linear(2, 3)
    with torch.no_grad():
        head.weight.zero_()
        head.bias.copy_(torch.tensor([5.0, 0.0, 0.0]))

    def accuracy() -> float:
        return float((head(x).argmax(1) == y).float().mean())

    assert accuracy() == pytest.approx(1 / 3)
    statistics = describe_classes([(x, y)], lambda v: v, 2)
    CCVR(virtual=200, lr=0.1).train_head(head, statistics.without_counts(), 2, stream("calibrate"))
    assert accuracy() > 0.9


def test_with_one_architecture_it_is_fedavg_until_the_head_is_calibrated() -> None:
    with ToyFederation(CCVR, FAST) as toy:
        toy.models = ["tiny-resnet"]
        config = toy.config()
        ours, averaged = toy.run(config).checked(), toy.run(config, method=FedAvg()).checked()
        accuracy = toy.run(config, evaluate=True).accuracy
        finals = [ours.client(k).weights("model") for k in "01234"]
    model, fedavg = ours.server["model"], averaged.server["model"]
    assert isinstance(model, dict) and isinstance(fedavg, dict)
    changed = {name for name in fedavg if not torch.equal(model[name], fedavg[name])}
    assert changed == {"head.weight", "head.bias"}
    assert ours.server["calibrated"] is True
    for final in finals:  # and that is what every client ends with
        assert all(torch.equal(final[name], model[name]) for name in model)
    assert set(accuracy) == {"personal", "global"}


def test_with_different_models_only_heads_are_calibrated(linears: Any) -> None:
    makers = linears().several([0, 0, 1], [1, 1, 2], seeds=["a", "b"])
    method = CCVR(mode="hetero", **FAST)  # type: ignore[arg-type]
    trained = run_rounds(InMemoryClients(CCVR(mode="hetero", virtual=0, allow_degenerate=True), makers), 2).checked()
    outcome = run_rounds(InMemoryClients(method, makers), 2).checked()
    for k in "01":
        after, before = outcome.client(k).weights("model"), trained.client(k).weights("model")
        assert {name for name in after if not torch.equal(after[name], before[name])} == {"head.weight", "head.bias"}
    heads = [outcome.client(k).weights("model")["head.weight"] for k in "01"]
    assert not torch.allclose(heads[0], heads[1])
    assert outcome.server == {"calibrated": False}  # the server holds no model


def test_pools_by_architecture_have_only_their_members() -> None:
    # tiny4 over five clients: 0 and 4 have the first model, the others stand alone. Client 1 has classes {1, 2}.
    fields = {"pool": "architecture", **FAST}
    with ToyFederation(CCVR, fields) as toy:
        round_stats = toy.run().checked().round_stats
    assert round_stats[0].down == {}
    # rows that come down: 4 to clients 0 and 4 (together all classes), 2 to each of the three others
    assert round_stats[1].down == {"statistics": 4 * (4 + 2 + 2 + 2 + 4) * (64 + 64 * 64)}


def test_no_reply_from_an_architecture() -> None:
    with ToyFederation(CCVR, {"pool": "architecture", **FAST}) as toy:
        outcome = toy.run(
            wrap=FaultyEngine(failing_clients=lambda call, tasks: ["1"] if call.steps == ("describe",) else [])
        )
        states = {k: outcome.client(k)["state"] for k in "01"}
    assert [failure["client"] for failure in outcome.failures] == ["1"]
    assert states == {"0": {"calibrated": True}, "1": {"calibrated": False}}


@pytest.mark.parametrize("diagonal", [False, True])
def test_bytes_with_different_models(diagonal: bool) -> None:
    # once, in the last round: up m_k (d + d^2 + 1) over 12 present classes, down C (d + d^2) to each of 5 clients
    with ToyFederation(CCVR, {"diagonal": diagonal, **FAST}) as toy:
        first, second = toy.run().checked().round_stats
    width = 64 + (64 if diagonal else 64 * 64)
    assert (first.up, first.down) == ({}, {})
    assert second.up == {"statistics": 4 * 12 * (width + 1)}
    assert second.down == {"statistics": 4 * 5 * 4 * width}


def test_bytes_with_one_architecture() -> None:
    with ToyFederation(CCVR, FAST) as toy:
        toy.models = ["tiny-cnn"]
        first, second = toy.run().checked().round_stats
        model = toy.federation(toy.config()).common_model("tiny-cnn")
    theta, head = (5 * 4 * sum(p.numel() for p in part.parameters()) for part in (model, model.head))
    assert first.up == {"model": theta, "samples": 0} and first.down == {"model": theta}
    assert second.up == {"model": theta, "samples": 0, "statistics": 4 * 12 * (64 + 64 * 64 + 1)}
    assert second.down == {"model": 2 * theta, "head": head}  # to train, to describe, and the calibrated head


def test_pooling_over_different_extractors_is_recorded_as_a_warning() -> None:
    with ToyFederation(CCVR, FAST) as toy:
        folder = toy.new_folder()
        toy.experiment(toy.settings(), folder)
        events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    warnings = [event["message"] for event in events if event["event"] == "method"]
    assert warnings == ["pooled statistics of extractors that are not aligned"]


def test_tukey_transforms_features_for_statistics_and_after_calibration(linears: Any) -> None:
    client = linears().client("0", [0, 0, 1, 2, 2, 2])
    client.round, client.step = 1, "describe"
    method = CCVR(tukey=0.5, **FAST)  # type: ignore[arg-type]
    x, y = client.train.inputs.float() / 255, client.train.labels
    with torch.no_grad():
        f = client.model.features(x)
        root = f.clamp(min=0).sqrt()
        table = method.describe(client, Payload({}))["statistics"]
        assert isinstance(table, ClassTable)
        assert torch.allclose(table.values[2, :3], root[y == 2].mean(0), atol=1e-6)
        assert torch.equal(method.predict(client, x), client.model(x))
        client.state["calibrated"] = True
        assert torch.allclose(method.predict(client, x), client.model.head(root))


def test_calibration_is_reproducible_and_depends_on_the_seed(linears: Any) -> None:
    def head(seed: int) -> Tensor:
        makers = linears().several([0, 0, 1], [1, 1, 2])
        outcome = run_rounds(InMemoryClients(CCVR(**FAST), makers, seed=seed)).checked()  # type: ignore[arg-type]
        return outcome.client("0").weights("model")["head.weight"]

    assert torch.equal(head(0), head(0))
    assert not torch.equal(head(0), head(1))


@pytest.mark.parametrize(
    ("fields", "expected_error"),
    [
        ({"virtual": 0}, r"^method.virtual is 0, which switches CCVR off"),
        ({"epochs": 0}, r"^method.epochs is 0, which switches CCVR off"),
        ({"tukey": 0.0}, r"^method.tukey is 0.0; expected a number above 0"),
    ],
)
def test_wrong_options_raise(fields: dict[str, Any], expected_error: str) -> None:
    with pytest.raises(InputError, match=expected_error):
        catalogue.make({"name": "ccvr", **fields})


@pytest.mark.parametrize(
    ("fields", "expected_error"),
    [
        ({"mode": "original"}, r"needs one architecture, but client 4 has tiny-cnn, client 1 has tiny-resnet"),
        ({"limit_mib": 0.05}, r"take 0 MiB, and method.limit_mib is 0.05; set method.diagonal: true"),
    ],
)
def test_impossible_settings_raise_before_round_one(fields: dict[str, Any], expected_error: str) -> None:
    with ToyFederation(CCVR, fields) as toy, pytest.raises(InputError, match=expected_error):
        toy.run()


def test_describing_does_not_change_the_model(linears: Any) -> None:
    client = linears(norm=True).client("0", [0, 0, 1, 2, 2, 2])
    client.round, client.step = 1, "describe"
    before = weights_of(client.model)
    CCVR().describe(client, Payload({}))
    assert all(torch.equal(before[name], tensor) for name, tensor in weights_of(client.model).items())


OPTIONS: list[dict[str, Any]] = [{"pool": "architecture"}, {"diagonal": True, "min_class_count": 3}]


@pytest.mark.parametrize("fields", OPTIONS)
@pytest.mark.parametrize("check", ["client_with_one_sample", "failing_clients_tolerated"])
def test_options_pass_the_battery(fields: dict[str, Any], check: str) -> None:
    testing.run_check(check, CCVR, fields | FAST)
