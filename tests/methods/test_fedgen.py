"""FedGen: generator training at the server, its use at clients, label counts, and message sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from polyfed import catalogue, testing
from polyfed.core import Payload, Server
from polyfed.core.client import copy_into, weights_of
from polyfed.core.client_profile import Profile, layout
from polyfed.core.codec import decode
from polyfed.core.rng import generator as stream_of
from polyfed.core.rng import seeded
from polyfed.errors import InputError
from polyfed.methods.fedgen.method import FedGen
from polyfed.methods.lg_fedavg import LGFedAvg
from polyfed.models.split import SplitModel
from polyfed.testing.engine_wrappers import FaultyEngine, RecordingEngine
from polyfed.testing.rounds import InMemoryClients, run_rounds
from polyfed.testing.toy_federation import CLASS_COUNTS, ToyFederation

LABELS = ([0, 0, 1], [0, 1, 1], [0, 2])
SMALL = {"hidden": 16, "noise": 4, "generator_steps": 5}


def server_for(method: FedGen, head: nn.Module) -> Server:
    """Return a server of clients with three features and three classes."""
    model = SplitModel(nn.Flatten(), head, feature_dim=3, classes=3)
    profile = Profile("0", "linear", layout(model), layout(head), 3, 3, 1)
    server = Server((profile,), 3, 1, 0, lambda spec: model)
    method.init(server)
    return server


def heads(number: int) -> list[nn.Module]:
    """Heads with a hidden layer, so that the mean of outputs is not the output of the mean."""
    made: list[nn.Module] = []
    for k in range(number):
        with seeded("head", k):
            made.append(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3)))
    return made


def message(method: FedGen, client: Any, shares: list[float]) -> Payload:
    sent = method.generator(1, 3, 3)
    with torch.no_grad():  # as after some training: running statistics other than the initial ones
        for _ in range(3):
            sent.sample(torch.ones(3), 5, stream_of("warm"))
    return Payload(
        {"head": weights_of(client.model.head), "generator": weights_of(sent), "shares": torch.tensor(shares)}
    )


def ready(client: Any) -> Any:
    client.round, client.step = 2, "train"
    return client


# the server


def test_with_perfect_heads_the_generators_loss_falls_below_a_tenth() -> None:
    # Three clients with one head, ten times the identity: it is right about every feature that points to its class.
    with seeded("perfect"):
        head = nn.Linear(3, 3)
    with torch.no_grad():
        head.weight.copy_(10 * torch.eye(3))
        head.bias.zero_()
    method = FedGen()
    server = server_for(method, head)
    shares = torch.tensor([0.5, 0.25, 0.25])

    def loss() -> float:
        made = method.generator(0, 3, 3)
        copy_into(made, server.memory.weights("generator"))
        y, f = made.eval().sample(shares, 200, stream_of("check"))
        return float(F.cross_entropy(head(f), y).detach())

    before = loss()
    method.train_generator(server, [weights_of(head)] * 3, torch.full((3,), 1 / 3), shares)
    assert before > 0.5 and loss() < 0.1


def test_one_step_of_the_generator_is_on_the_weighted_mean_of_the_heads_outputs() -> None:
    # CE(sum_k p_k h_k(G(y, eps)), y) written out, one step of a new Adam
    method = FedGen(generator_steps=1, hidden=8, noise=2, generator_lr=0.01)
    several, p = heads(3), [0.5, 0.2, 0.3]
    server = server_for(method, several[0])
    shares = torch.tensor([0.5, 0.0, 0.5])
    method.train_generator(server, [weights_of(h) for h in several], torch.tensor(p), shares)
    made = method.generator(server.seed, 3, 3)
    optimizer = torch.optim.Adam(made.parameters(), lr=0.01)
    y, f = made.sample(shares, 10, server.stream("generator"))
    z = sum((weight * h(f) for weight, h in zip(p, several, strict=True)), torch.zeros(10, 3))
    F.cross_entropy(z, y).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    trained = server.memory.weights("generator")
    for name, tensor in weights_of(made).items():
        if name != "layers.0.bias":  # BatchNorm takes it out again: its gradient is rounding, which Adam blows up
            assert torch.allclose(trained[name].double(), tensor.double(), atol=1e-6)
    assert set(y.tolist()) == {0, 2}


def test_heads_do_not_change() -> None:
    several = heads(2)
    before = [weights_of(h) for h in several]
    method = FedGen(**SMALL)  # type: ignore[arg-type]
    given_weights = [weights_of(h) for h in several]
    method.train_generator(
        server_for(method, heads(1)[0]), given_weights, torch.tensor([0.5, 0.5]), torch.ones(3) / 3
    )
    for was, now in zip(before, given_weights, strict=True):
        assert all(torch.equal(was[name], now[name]) and not now[name].requires_grad for name in was)


def test_the_generator_and_its_optimiser_state_persist(linears: Any) -> None:
    makers = linears().several(*LABELS, seeds=["a", "b", "c"])
    server = run_rounds(InMemoryClients(FedGen(**SMALL), makers), 3).checked().server  # type: ignore[arg-type]
    assert isinstance(server["adam"], dict) and isinstance(server["generator"], dict)
    assert server["adam"]["0.step"].item() == 3 * SMALL["generator_steps"]
    assert server["generator"]["layers.1.num_batches_tracked"].item() == 3 * SMALL["generator_steps"]


@pytest.mark.parametrize("untrained", [False, True])
def test_clients_receive_the_trained_generator_unless_the_fault_is_reproduced(linears: Any, untrained: bool) -> None:
    recorder = RecordingEngine()
    method = FedGen(**SMALL, untrained_generator=untrained)  # type: ignore[arg-type]
    run_rounds(InMemoryClients(method, linears().several(*LABELS)), 2, wrap=recorder).checked()
    first, second = (decode(recorder.down[at].frames[0]).weights("generator") for at in (0, len(LABELS)))
    initial = weights_of(method.generator(0, 3, 3))
    assert all(torch.equal(first[name], tensor) for name, tensor in initial.items())
    assert all(torch.equal(second[name], tensor) == untrained for name, tensor in initial.items())


# clients


def test_one_step_by_hand(linears: Any) -> None:
    # CE(z, y) + gamma CE(h(G(y~, eps)), y~), with the draws of the client's own stream and G in evaluation mode
    method = FedGen(guidance=2.0, hidden=8, noise=2)
    make = linears(settings={"batch_size": 20})
    ours, theirs = ready(make.client("0", LABELS[0])), ready(make.client("0", LABELS[0]))
    msg = message(method, ours, [0.5, 0.0, 0.5])
    method.train(ours, msg)
    generator = method.received_generator(theirs, msg)
    wanted, f = generator.sample(msg.tensor("shares"), 20, theirs.stream("generated"))
    x, y = theirs.train.inputs.float() / 255, theirs.train.labels
    task, taught = F.cross_entropy(theirs.model(x), y), F.cross_entropy(theirs.model.head(f), wanted)
    (task + 2.0 * taught).backward()  # type: ignore[no-untyped-call]
    for name, p in theirs.model.named_parameters():
        assert torch.allclose(weights_of(ours.model)[name], p.detach() - 0.1 * p.grad, rtol=1e-5, atol=1e-7)
    assert set(wanted.tolist()) == {0, 2} and set(y.tolist()) == {0, 1}


def test_clients_do_not_train_the_generator(linears: Any) -> None:
    method = FedGen(**SMALL)  # type: ignore[arg-type]
    client = ready(linears().client("0", LABELS[0]))
    msg = message(method, client, [1.0, 0.0, 0.0])
    before = {name: tensor.clone() for name, tensor in msg.weights("generator").items()}
    generator = method.received_generator(client, msg)
    _, f = generator.sample(msg.tensor("shares"), 4, stream_of("draw"))
    assert not f.requires_grad and not generator.training
    method.train(client, msg)
    assert all(torch.equal(msg.weights("generator")[name], tensor) for name, tensor in before.items())
    after = weights_of(generator)  # its statistics did not move either
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_without_known_labels_nothing_is_generated(linears: Any) -> None:
    method = FedGen(guidance=5.0, **SMALL)  # type: ignore[arg-type]
    ours, theirs = ready(linears().client("0", LABELS[0])), ready(linears().client("0", LABELS[0]))
    method.train(ours, message(method, ours, [0.0, 0.0, 0.0]))
    theirs.fit()
    mine, expected = weights_of(ours.model), weights_of(theirs.model)
    assert all(torch.equal(mine[name], expected[name]) for name in expected)


@pytest.mark.parametrize("weights", ["samples", "uniform"])
def test_without_guidance_it_is_lg_fedavg(weights: Any) -> None:
    with ToyFederation(FedGen, {"guidance": 0.0, "allow_degenerate": True, "weights": weights, **SMALL}) as toy:
        config = toy.config(rounds=3)
        ours, plain = (
            toy.run(config).checked(),
            toy.run(config, method=LGFedAvg(weights=weights)).checked(),
        )
        theirs = plain.server["head"]
        head = ours.server["head"]
        assert isinstance(head, dict) and isinstance(theirs, dict)
        assert all(torch.equal(head[name], theirs[name]) for name in theirs)
        for k in "01234":
            mine, other = ours.client(k).weights("model"), plain.client(k).weights("model")
            assert all(torch.equal(mine[name], other[name]) for name in other)


def test_guidance_changes_the_model(linears: Any) -> None:
    makers = linears().several(*LABELS, seeds=["a", "b", "c"])
    taught = run_rounds(InMemoryClients(FedGen(**SMALL), makers), 2).checked()  # type: ignore[arg-type]
    plain = run_rounds(InMemoryClients(LGFedAvg(), makers), 2).checked()
    mine, theirs = taught.client("0").weights("model"), plain.client("0").weights("model")
    assert not torch.allclose(mine["head.weight"], theirs["head.weight"])


# labels


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=2, max_size=6).filter(any), st.integers(1, 30))
def test_generated_labels_are_of_classes_with_samples(counts: list[int], number: int) -> None:
    with seeded("generator"):
        made = FedGen(hidden=4, noise=2).generator(0, len(counts), 3).eval()
    shares = torch.tensor(counts) / sum(counts)
    labels, f = made.sample(shares, number, stream_of("labels", number))
    assert f.shape == (number, 3)
    assert all(counts[label] > 0 for label in labels.tolist())


def shares_sent(
    method: FedGen, linears: Any, turns: dict[int, tuple[str, ...]], wrap: Any = None
) -> list[list[float]]:
    """Return the label distribution sent in every round."""
    recorder = RecordingEngine()
    wrapped = (lambda engine: recorder(wrap(engine))) if wrap else recorder
    run_rounds(
        InMemoryClients(method, linears().several(*LABELS)),
        len(turns),
        wrap=wrapped,
        selected=lambda number: turns[number],
    )
    firsts = [sum(len(turns[n]) for n in range(1, number)) for number in turns]
    return [decode(recorder.down[at].frames[0]).tensor("shares").tolist() for at in firsts]


def test_counts_are_pooled_over_clients_that_sent_them(linears: Any) -> None:
    # counts of classes: client 0 (2, 1, 0), client 1 (1, 2, 0), client 2 (1, 0, 1)
    turns = {1: ("0",), 2: ("1", "2"), 3: ("0", "2"), 4: ("1",)}
    sent = shares_sent(FedGen(**SMALL), linears, turns)  # type: ignore[arg-type]
    assert sent[0] == [0, 0, 0]
    assert sent[1] == pytest.approx([2 / 3, 1 / 3, 0])
    assert sent[2] == sent[3] == pytest.approx([4 / 8, 3 / 8, 1 / 8])
    own = shares_sent(FedGen(**SMALL, labels_of="participants"), linears, turns)  # type: ignore[arg-type]
    assert own[0] == own[1] == [0, 0, 0]
    assert own[2] == pytest.approx([3 / 5, 1 / 5, 1 / 5])
    assert own[3] == pytest.approx([1 / 3, 2 / 3, 0])


def test_lost_counts_are_sent_again(linears: Any) -> None:
    # client 1 fails in round 1, so its counts are known only after round 2
    everyone = ("0", "1", "2")
    faulty = FaultyEngine(failing_clients=lambda call, tasks: ["1"] if call.number == 1 else [])
    turns = dict.fromkeys((1, 2, 3), everyone)
    sent = shares_sent(FedGen(**SMALL), linears, turns, wrap=faulty)  # type: ignore[arg-type]
    assert sent[1] == pytest.approx([3 / 5, 1 / 5, 1 / 5])
    assert sent[2] == pytest.approx([4 / 8, 3 / 8, 1 / 8])


# bytes and refusals


def test_bytes() -> None:
    # down: #h + #G, and C shares. G is two linear layers, and BatchNorm with four vectors and a counter of 8 bytes.
    # up: #h, and C counts once; the number of samples is a JSON scalar and weighs nothing but overhead.
    features, classes, clients = 64, 4, len(CLASS_COUNTS)
    head = 4 * (features * classes + classes)
    linear = (classes + 32) * 512 + 512 + 512 * features + features
    generator = 4 * (linear + 4 * 512) + 8
    with ToyFederation(FedGen, {"generator_steps": 1}) as toy:
        first, second = toy.run().checked().round_stats
    down = {"head": clients * head, "generator": clients * generator, "shares": clients * 4 * classes}
    assert first.down == second.down == down
    assert first.up == {"head": clients * head, "samples": 0, "labels": clients * 4 * classes}
    assert second.up == {"head": clients * head, "samples": 0}


def test_invalid_options_raise() -> None:
    for field, value in (("guidance", 0.0), ("generator_lr", 0.0), ("generator_steps", 0)):
        with pytest.raises(InputError, match=rf"^method.{field} is 0, which switches FedGen off"):
            catalogue.make({"name": "fedgen", field: value})
        catalogue.make({"name": "fedgen", field: value, "allow_degenerate": True})
    with pytest.raises(InputError, match=r"^method.generator_batch is 1; .*at least 2$"):
        catalogue.make({"name": "fedgen", "generator_batch": 1})


@pytest.mark.parametrize(
    "check", ["independent_of_client_order", "client_with_one_sample", "failing_clients_tolerated"]
)
def test_options_pass_the_battery(check: str) -> None:
    testing.run_check(check, FedGen, {"weights": "uniform", "labels_of": "participants", **SMALL})
