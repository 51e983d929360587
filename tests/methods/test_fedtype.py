"""FedType: conformal sets, the ranking loss, the two models' turns, and the samples held out."""

from __future__ import annotations

import json
import math
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from polyfed import catalogue, testing
from polyfed.core import rng
from polyfed.core.client import Client, weights_of
from polyfed.core.payload import Payload, view
from polyfed.errors import InputError
from polyfed.methods.fedtype.conformal import (
    Conformal,
    calibrated,
    consensus,
    fitted_temperature,
    fractions,
    ranking_loss,
)
from polyfed.methods.fedtype.method import FedType
from polyfed.models.split import SplitModel
from polyfed.testing.rounds import InMemoryClients, run_rounds
from polyfed.testing.toy_federation import ToyFederation


def stream(name: str = "test") -> torch.Generator:
    return rng.generator(name)


def noisy_logits(count: int, classes: int, name: str, sharpness: float = 2.0) -> tuple[Tensor, Tensor]:
    """Logits of a classifier that is sometimes wrong, and the labels."""
    noise = stream(name)
    labels = torch.randint(classes, (count,), generator=noise)
    return sharpness * F.one_hot(labels, classes) + torch.randn(count, classes, generator=noise), labels


# conformal sets


@pytest.mark.parametrize(("classes", "free_ranks", "penalty"), [(10, 5, 0.5), (10, 1, 0.1), (4, 5, 1.0), (2, 5, 0.5)])
def test_sets_cover_fresh_samples(classes: int, free_ranks: int, penalty: float) -> None:
    logits, labels = noisy_logits(2000, classes, "calibration")
    rule = calibrated(logits, labels, coverage=0.9, penalty=penalty, free_ranks=free_ranks, stream=stream())
    fresh, right = noisy_logits(1000, classes, "fresh")
    sets = rule.sets(fresh, fractions(len(fresh), stream("sets")))
    covered = float(sets.gather(1, right[:, None]).float().mean())
    assert covered >= 0.88
    assert bool(sets.any(1).all())
    assert float(sets.sum(1).float().mean()) < classes  # not by holding everything


def test_a_large_penalty_beyond_the_first_rank_gives_singletons() -> None:
    # Right in more than 90 % of the samples, so the quantile is a score of rank 1, below the penalty of rank 2.
    logits, labels = noisy_logits(500, 6, "sharp", sharpness=6.0)
    assert float((logits.argmax(1) == labels).float().mean()) > 0.92
    rule = calibrated(logits, labels, coverage=0.9, penalty=100.0, free_ranks=1, stream=stream())
    sets = rule.sets(logits, fractions(len(logits), stream("sets")))
    assert torch.equal(sets.sum(1), torch.ones(500, dtype=torch.int64))
    assert torch.equal(sets.float().argmax(1), logits.argmax(1))


def test_scores_by_hand() -> None:
    # Probabilities 0.2, 0.5, 0.3; ranks 3, 1, 2. One rank is free, each further one costs 0.1. With the random part
    # u in [0, 1): u 0.5 for rank 1; 0.5 + u 0.3 + 0.1 for rank 2; 0.8 + u 0.2 + 0.2 for rank 3.
    logits = torch.tensor([[0.2, 0.5, 0.3]]).log()
    u = float(torch.rand(1, 1, generator=stream("u")))
    scores = Conformal(1.0, 0.1, 1).scores(logits, fractions(len(logits), stream("u")))
    assert torch.allclose(scores, torch.tensor([[1.0 + 0.2 * u, 0.5 * u, 0.6 + 0.3 * u]]), atol=1e-6)
    sets = Conformal(1.0, 0.1, 1, threshold=0.5 + 0.3 * u + 0.1 + 1e-4).sets(
        logits, fractions(len(logits), stream("u"))
    )
    assert sets.tolist() == [[False, True, True]]
    assert Conformal(1.0, 0.1, 1, threshold=-1.0).sets(logits, fractions(len(logits), stream())).tolist() == [
        [False, True, False]
    ]


def test_the_threshold_is_the_upper_quantile() -> None:
    # 19 samples: the ceil(20 * 0.9) = 18th smallest score. 8 samples: the 9th is needed, so everything is in.
    logits, labels = noisy_logits(19, 5, "few")
    rule = calibrated(logits, labels, coverage=0.9, penalty=0.5, free_ranks=2, stream=stream("u"))
    own = rule.scores(logits, fractions(len(logits), stream("u"))).gather(1, labels[:, None])[:, 0]
    assert rule.threshold == pytest.approx(sorted(own.tolist())[17])
    few = calibrated(logits[:8], labels[:8], coverage=0.9, penalty=0.5, free_ranks=2, stream=stream("u"))
    assert few.threshold == math.inf
    assert bool(few.sets(logits, fractions(len(logits), stream())).all())
    assert calibrated(logits, labels, coverage=0.9, penalty=1, free_ranks=9, stream=stream()).free_ranks == 4


@settings(max_examples=15, deadline=None)
@given(scale=st.floats(0.2, 8), seed=st.integers(0, 100))
def test_the_fitted_temperature_minimises_the_loss(scale: float, seed: int) -> None:
    logits, labels = noisy_logits(200, 5, f"logits {seed}")
    logits = logits * scale
    actual = float(F.cross_entropy(logits / fitted_temperature(logits, labels), labels))
    grid = torch.logspace(math.log10(0.05), math.log10(20), 60)
    assert actual <= min(float(F.cross_entropy(logits / t, labels)) for t in grid) + 1e-5


def test_consensus_by_hand() -> None:
    def sets(*members: set[int]) -> Tensor:
        return torch.tensor([[c in own for c in range(5)] for own in members])

    own = sets({0, 1}, {0, 1, 2}, {0}, {3}, {0, 1, 2, 3})
    others = sets({0, 1}, {0, 4}, {0, 1, 2}, {4}, {0, 1})
    # equal: 1. Larger than the other: 1 shared of its 2. Smaller: 1 of the union's 3. Apart: 0. Larger and around: 1.
    assert torch.allclose(consensus(own, others), torch.tensor([1.0, 0.5, 1 / 3, 0.0, 1.0]))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), classes=st.integers(2, 8))
def test_consensus_is_between_0_and_1_and_1_for_equal_sets(seed: int, classes: int) -> None:
    draws = torch.rand(2, 20, classes, generator=rng.generator(seed))
    own, others = ((d > 0.5) | (d == d.amax(1, keepdim=True)) for d in draws)
    agreed = consensus(own, others)
    assert bool(((agreed >= 0) & (agreed <= 1)).all())
    assert torch.equal(consensus(own, own), torch.ones(20))


def test_the_ranking_loss_by_hand() -> None:
    # z = 1, 3, 2; preferred {0, 2}; the pairs are (0, 1): relu(3 - 1) = 2 and (2, 1): relu(3 - 2) = 1; mean 1.5.
    z = torch.tensor([[1.0, 3.0, 2.0]], requires_grad=True)
    preferred = torch.tensor([[True, False, True]])
    loss = ranking_loss(z, preferred, 0.0)
    assert loss.tolist() == [1.5]
    loss.sum().backward()  # type: ignore[no-untyped-call]
    assert z.grad is not None
    assert z.grad.tolist() == [[-0.5, 1.0, -0.5]]  # a step against it raises the members and lowers the other
    assert ranking_loss(z, preferred, 0.5).tolist() == [2.0]


def test_the_ranking_loss_is_0_if_every_label_is_preferred() -> None:
    z = torch.randn(3, 4, generator=stream()).requires_grad_()
    loss = ranking_loss(z, torch.ones(3, 4, dtype=torch.bool), 1.0)
    assert loss.tolist() == [0.0, 0.0, 0.0]
    loss.sum().backward()  # type: ignore[no-untyped-call]
    assert z.grad is not None and not bool(z.grad.any())


# the client's side

LABELS = [0, 1, 2] * 8


def client_with_proxy(linears: Any, labels: list[int] = LABELS, **options: Any) -> tuple[Client, SplitModel]:
    """A client that can build one other architecture, the proxy."""
    make = linears(**options)
    client: Client = make.client("0", labels)
    client.build = lambda spec: make.model(f"model {spec}")
    client.round, client.step = 1, "train"
    return client, make.model("model proxy")


def message(proxy: SplitModel) -> Payload:
    return Payload({"auxiliary": "proxy", "proxy": weights_of(proxy)})


def one_epoch(linears: Any, method: FedType, **options: Any) -> tuple[Client, dict[str, Tensor]]:
    client, proxy = client_with_proxy(linears, **options)
    reply = method.train(client, message(proxy))
    trained = reply["proxy"]
    assert isinstance(trained, dict)
    return client, trained


def test_both_steps_by_hand(linears: Any) -> None:
    # One full batch each. Private: CE(z) + c R with the sets made here as the method makes them. Proxy afterwards:
    # CE(z_w) + KL(softmax z || softmax z_w), with the private model's outputs after its own step.
    method = FedType(margin=1.0)
    ours, trained = one_epoch(linears, method)
    theirs, proxy = client_with_proxy(linears)
    x, y = theirs.train.inputs.float() / 255, theirs.train.labels
    draws, order = theirs.stream("sets 0"), torch.randperm(24, generator=theirs.stream("private 0"))
    common = {"coverage": 0.9, "free_ranks": 5, "stream": draws}
    with torch.no_grad():
        rule_w = calibrated(proxy(x), y, penalty=0.5, **common)  # type: ignore[arg-type]
        rule = calibrated(theirs.model(x), y, penalty=1.0, **common)  # type: ignore[arg-type]
    z = theirs.model(x[order])
    preferred = rule_w.sets(proxy(x[order]).detach(), fractions(24, draws))
    own = rule.sets(z.detach(), fractions(24, draws))
    shares, ranks = [], []
    for s, s_w, logits in zip(own.tolist(), preferred.tolist(), z, strict=True):
        inside = {c for c in range(3) if s_w[c]}
        mine = {c for c in range(3) if s[c]}
        whole = mine | inside if len(mine) <= len(inside) else inside
        shares.append(len(mine & inside) / len(whole))
        pairs = [(i, j) for i in inside for j in range(3) if j not in inside]
        ranks.append(sum(torch.relu(1.0 + logits[j] - logits[i]) for i, j in pairs) / max(1, len(pairs)))
    assert 0 < sum(shares) < 24  # sets that differ, so that c matters
    ranked = torch.stack([torch.as_tensor(r) for r in ranks]).mean()
    (F.cross_entropy(z, y[order]) + sum(shares) / 24 * ranked).backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for p in theirs.model.parameters():
            assert p.grad is not None
            p.sub_(0.1 * p.grad)
    for name, p in theirs.model.named_parameters():
        assert torch.allclose(weights_of(ours.model)[name], p, rtol=1e-4, atol=1e-6)
    z, z_w = theirs.model(x).detach(), proxy(x)
    kl = (z.softmax(1) * (z.log_softmax(1) - z_w.log_softmax(1))).sum() / 24
    (F.cross_entropy(z_w, y) + kl).backward()
    for name, p in proxy.named_parameters():
        assert p.grad is not None
        assert torch.allclose(trained[name], p.detach() - 0.1 * p.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("calibrate", "times"), [("round", 2), ("epoch", 6)])
def test_label_sets_are_calibrated_once_a_round_or_every_epoch(linears: Any, calibrate: Any, times: int) -> None:
    counted: list[float] = []

    class Counting(FedType):
        def calibrated(self, *given: Any, **more: Any) -> Conformal:
            counted.append(given[2])  # the penalty, of proxy and private model in turn
            return super().calibrated(*given, **more)

    client, proxy = client_with_proxy(linears, settings={"epochs": 3})
    Counting(calibrate=calibrate).train(client, message(proxy))
    assert len(counted) == times and counted[1] == 1.0


def test_the_ranking_loss_trains_the_private_model_but_not_as_released(linears: Any) -> None:
    plain, _ = client_with_proxy(linears)
    plain.fit(purpose="private 0")
    for faulty in (False, True):
        client, _ = one_epoch(linears, FedType(margin=1.0, ranking_without_effect=faulty))
        same = [
            torch.allclose(weights_of(client.model)[name], tensor, atol=1e-7)
            for name, tensor in weights_of(plain.model).items()
        ]
        assert all(same) is faulty


def test_teachers_do_not_change_their_batchnorm_statistics(linears: Any) -> None:
    # With one local epoch of one batch each model's statistics move by exactly one update: that of its own training.
    client, trained = one_epoch(linears, FedType(), norm=True)
    counters = [t for name, t in client.model.state_dict().items() if name.endswith("num_batches_tracked")]
    counters += [t for name, t in trained.items() if name.endswith("num_batches_tracked")]
    assert [int(c) for c in counters] == [1, 1]


def test_the_penalty_grows_when_accuracy_falls(linears: Any) -> None:
    method = FedType(proxy_penalty=0.5)
    client, proxy = client_with_proxy(linears)
    assert method.raised_penalty(client) == 0.5
    method.train(client, message(proxy))
    assert client.memory.number("fell") == 0 and method.raised_penalty(client) == 0.5  # there was none before
    x, y = client.train.inputs.float() / 255, client.train.labels
    for before in (1.0, 0.0):  # an accuracy before this epoch that it must fall from, and one that it cannot
        client.round += 1
        client.state["accuracy"] = before
        now = float((client.model(x).argmax(1) == y).float().mean())  # one batch: as the epoch's only step finds it
        assert 0 < now < 1
        method.train(client, message(proxy))
        assert client.memory.number("accuracy") == pytest.approx(now)
        assert method.raised_penalty(client) == pytest.approx(0.5 + 0.5 * max(0.0, before - now))


def test_a_tenth_is_held_out_if_that_is_enough(linears: Any) -> None:
    client, _ = client_with_proxy(linears, [0, 1, 2] * 100)
    train, others = FedType().split(client)
    assert (len(train), len(others)) == (270, 30)
    order = client.memory.tensor("order").tolist()
    assert sorted(order) == list(range(300))
    assert torch.equal(others.inputs, client.train.inputs[order[:30]])
    client.round = 5  # and the same ones in every round
    again, _ = FedType().split(client)
    assert torch.equal(again.inputs, train.inputs) and torch.equal(again.labels, train.labels)
    few, _ = client_with_proxy(linears, [0, 1, 2] * 60)  # 18 would be held out, 20 are needed
    assert [len(part) for part in FedType().split(few)] == [180, 180]
    assert [len(part) for part in FedType(calibration_minimum=18).split(few)] == [162, 18]


def test_held_out_samples_are_not_trained_on(linears: Any) -> None:
    # Every sample is seen once per local epoch by each model: 270 of 300, twice.
    client, proxy = client_with_proxy(linears, [0, 1, 2] * 100)
    FedType().train(client, message(proxy))
    assert [fit.samples for fit in client.fits] == [270, 270]


def test_training_alternates_by_epochs_and_by_steps(linears: Any) -> None:
    for options, expected in (({"epochs": 3}, [24] * 6), ({"steps": 2, "batch_size": 10}, [20, 20])):
        client, proxy = client_with_proxy(linears, settings=options)
        FedType().train(client, message(proxy))
        assert [fit.samples for fit in client.fits] == expected


# the whole


def only(client: str, number: int) -> tuple[str, ...]:
    return (client,)


def test_the_proxy_is_the_unweighted_mean() -> None:
    with ToyFederation(FedType, {}) as toy:
        config = toy.config(rounds=1)
        outcome = toy.run(config).checked()
        alone = [view(toy.run(config, selected=partial(only, k)).checked().server).weights("proxy") for k in "01234"]
        federation = toy.federation(config)
        smallest = min(federation.profiles(), key=lambda p: sum(math.prod(s) for _, s, _ in p.model))
        initial = federation.common_model(smallest.spec).state_dict()
    proxy = outcome.server["proxy"]
    assert isinstance(proxy, dict) and proxy.keys() == initial.keys()
    for name, tensor in proxy.items():
        sent = torch.stack([one[name] for one in alone]).double()
        expected = sent.mean(0) if tensor.is_floating_point() else sent.amax(0)  # R3: BatchNorm's counter
        assert torch.allclose(tensor.double(), expected, atol=1e-6)
    assert any(not torch.equal(proxy[name], initial[name]) for name in initial)


def test_bytes() -> None:
    # the proxy down and up; it is the smallest of the four models unless another is named
    for fields, spec in (({}, None), ({"auxiliary": "tiny-resnet"}, "tiny-resnet")):
        with ToyFederation(FedType, fields) as toy:
            round_stats = toy.run().checked().round_stats
            federation = toy.federation(toy.config())
            sizes = {
                name: sum(t.numel() * t.element_size() for t in federation.common_model(name).state_dict().values())
                for name in ("tiny-cnn", "tiny-resnet", "tiny-mobile", "tiny-mlp")
            }
            chosen = spec or min(
                sizes, key=lambda n: sum(p.numel() for p in federation.common_model(n).state_dict().values())
            )
        for stats in round_stats:
            assert stats.up == {"proxy": 5 * sizes[chosen]}
            assert stats.down == {"auxiliary": 0, "proxy": 5 * sizes[chosen]}


def test_private_models_are_trained_and_never_sent(linears: Any) -> None:
    makers = linears().several([0, 0, 1], [1, 1, 2], seeds=["a", "b"])

    def with_builder(make: Any) -> Any:
        def made() -> Client:
            client: Client = make()
            client.build = lambda spec: linears().model("proxy")
            return client

        return made

    outcome = run_rounds(InMemoryClients(FedType(), [with_builder(make) for make in makers]), 3).checked()
    first = outcome.client("0").weights("model")["head.weight"]
    assert not torch.equal(first, linears().model("a").head.weight)
    assert not torch.allclose(first, outcome.client("1").weights("model")["head.weight"])
    assert outcome.server.keys() == {"proxy"}


def test_calibrating_on_training_samples_is_recorded_as_a_warning() -> None:
    with ToyFederation(
        FedType, {"calibration_minimum": 1}
    ) as toy:  # a tenth of the toy federation's 9 to 12 samples is 0 or 1
        folder = toy.new_folder()
        toy.experiment(toy.settings(), folder)
        events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    warnings = [event for event in events if event["event"] == "method"]
    assert [(event["message"], event["clients"]) for event in warnings] == [
        ("label sets are calibrated on training samples", ["3"])
    ]


@pytest.mark.parametrize(
    ("fields", "expected_error"),
    [
        ({"coverage": 1.0}, r"^method.coverage is 1.0; expected a number above 0 and below 1$"),
        ({"calibration_fraction": 0.0}, r"^method.calibration_fraction is 0.0; expected a number above 0"),
        ({"temperature": 0.0}, r"^method.temperature is 0.0; expected a number above 0$"),
    ],
)
def test_wrong_options_raise(fields: dict[str, Any], expected_error: str) -> None:
    with pytest.raises(InputError, match=expected_error):
        catalogue.make({"name": "fedtype", **fields})


OPTIONS: list[dict[str, Any]] = [{"calibration_minimum": 1}, {"auxiliary": "tiny-resnet", "temperature": 2.0}]


@pytest.mark.parametrize("fields", OPTIONS)
@pytest.mark.parametrize("check", ["independent_of_memory_budget", "client_with_one_sample", "odd_last_batch"])
def test_options_pass_the_battery(fields: dict[str, Any], check: str) -> None:
    testing.run_check(check, FedType, fields)
