"""FedKD: its losses, its schedule, its messages, and equality of all mentees."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from polyfed import catalogue, testing
from polyfed.core.client import Client, weights_of
from polyfed.core.codec import decode
from polyfed.core.payload import Payload
from polyfed.errors import InputError
from polyfed.methods.fedkd.method import FedKD
from polyfed.models import ModelSpec, build
from polyfed.testing.engine_wrappers import FaultyEngine, RecordingEngine
from polyfed.testing.rounds import InMemoryClients, run_rounds
from polyfed.testing.toy_federation import ToyFederation

LABELS = [0, 0, 1, 2, 2, 2]
SHARED = ([0, 1, 2], [0, 0, 1, 2, 2])


def made(make: Any, name: str = "0", labels: Any = LABELS, seed: str = "private", mentee: Any = None) -> Client:
    """A client that can build the mentee."""
    client: Client = make.client(name, labels, seed)
    client.build = lambda spec: (mentee or make).model("shared")
    client.round, client.step = 1, "train"
    return client


def several(make: Any, *labels: Any) -> list[Callable[[], Client]]:
    return [lambda k=k: made(make, str(k), labels[k], f"seed {k}") for k in range(len(labels))]  # type: ignore[misc]


def message(weights: Mapping[str, Tensor], energy: float = 1.0) -> Payload:
    return Payload({"auxiliary": "", "energy": energy, "mentee": weights, "update": {}})


def received(recorder: RecordingEngine) -> list[dict[str, Any]]:
    """Return every message to a client, with its fields."""
    return [
        {"client": m.client, **{name: v for frame in m.frames for name, v in decode(frame).items()}}
        for m in recorder.down
    ]


# the losses


def scores() -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    z = torch.tensor([[1.0, -1.0], [0.5, 2.0]], requires_grad=True)
    z_w = torch.tensor([[0.0, 1.0], [3.0, -1.0]], requires_grad=True)
    f = torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 1.0]], requires_grad=True)
    mapped = torch.tensor([[0.0, 2.0, 5.0], [1.0, 0.0, 1.0]], requires_grad=True)
    return z, z_w, f, mapped, torch.tensor([0, 1])


def test_the_losses_by_hand() -> None:
    # CE(z) = (log(1 + e^-2) + log(1 + e^-1.5)) / 2 = (0.126928 + 0.201413) / 2 = 0.164171
    # CE(z_w) = (log(1 + e) + log(1 + e^4)) / 2 = (1.313262 + 4.018150) / 2 = 2.665706, so s = 2.829877
    # hidden: squares 1 0 4 1 0 0 over 6 numbers = 1, divided by s
    z, z_w, f, mapped, y = scores()
    ce, ce_w, l_d, l_d_w, l_h = (float(term.detach()) for term in FedKD().losses(z, z_w, f, mapped, y))
    assert ce == pytest.approx(0.164171, abs=1e-5)
    assert ce_w == pytest.approx(2.665706, abs=1e-5)
    p, q = z.detach().softmax(1), z_w.detach().softmax(1)
    assert l_d == pytest.approx(float((q * (q.log() - p.log())).sum(1).mean()) / 2.829877, rel=1e-4)
    assert l_d_w == pytest.approx(float((p * (p.log() - q.log())).sum(1).mean()) / 2.829877, rel=1e-4)
    assert l_h == pytest.approx(1 / 2.829877, rel=1e-4)


def test_the_gradients_by_hand() -> None:
    # With s a constant each model is moved by its own terms only:
    # d/dz = (p - onehot) / n + (p - q) / (n s), d/dz_w = (q - onehot) / n + (q - p) / (n s),
    # d/df = 2 (f - M f_w) / (n d s) = - d/d(M f_w)
    z, z_w, f, mapped, y = scores()
    total = sum(FedKD().losses(z, z_w, f, mapped, y), torch.zeros(()))
    got = torch.autograd.grad(total, [z, z_w, f, mapped])
    p, q, hot = z.detach().softmax(1), z_w.detach().softmax(1), F.one_hot(y, 2)
    s = float(F.cross_entropy(z.detach(), y) + F.cross_entropy(z_w.detach(), y))
    apart = 2 * (f - mapped).detach() / (2 * 3 * s)
    wanted = [(p - hot) / 2 + (p - q) / (2 * s), (q - hot) / 2 + (q - p) / (2 * s), apart, -apart]
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(got, wanted, strict=True))


def test_faults_of_released_code_are_options() -> None:
    z, z_w, f, mapped, y = scores()
    plain = FedKD().losses(z, z_w, f, mapped, y)
    divided = FedKD(kl_reduction="mean").losses(z, z_w, f, mapped, y)
    assert float(divided[2].detach()) == pytest.approx(float(plain[2].detach()) / 2)
    through = FedKD(gradient_through_scale=True).losses(z, z_w, f, mapped, y)
    assert float(through[4].detach()) == pytest.approx(float(plain[4].detach()))
    assert torch.autograd.grad(plain[4], z, allow_unused=True, retain_graph=True)[0] is None
    assert torch.autograd.grad(through[4], z, retain_graph=True)[0].abs().sum() > 0


def test_equal_models_learn_from_their_labels_only() -> None:
    z, _, f, _, y = scores()
    terms = FedKD().losses(z, z.clone(), f, f.clone(), y)
    assert [float(term.detach()) for term in terms[2:]] == [0, 0, 0]


def test_zero_losses_stay_finite() -> None:
    z = torch.tensor([[200.0, 0.0]], requires_grad=True)
    f = torch.ones(1, 3, requires_grad=True)
    total = sum(FedKD().losses(z, z.clone(), f, torch.zeros(1, 3), torch.tensor([0])), torch.zeros(()))
    assert all(bool(torch.isfinite(g).all()) for g in torch.autograd.grad(total, [z, f]))


def test_one_step_of_mentor_mentee_and_map(linears: Any) -> None:
    make, small = linears(features=5), linears(features=2)  # the map is 5 x 2
    method = FedKD(clip_norm=None)
    client, mentor, mentee = made(make, mentee=small), make.model("private"), small.model("shared")
    hidden = method.hidden_map(made(make), 2)
    reply: Any = method.train(client, message(weights_of(mentee)))
    x, y = client.train.inputs.float() / 255, client.train.labels
    f, f_w = mentor.features(x), mentee.features(x)
    total = sum(method.losses(mentor.head(f), mentee.head(f_w), f, hidden(f_w), y), torch.zeros(()))
    total.backward()  # type: ignore[no-untyped-call]
    state: Any = client.state
    moved = {name: weights_of(mentee)[name] + part for name, part in reply["update"].items() if torch.is_tensor(part)}
    assert len(moved) == 4  # at energy 1 nothing here is smaller in factors
    for module, got in ((mentor, weights_of(client.model)), (mentee, moved), (hidden, state["map"])):
        for name, parameter in module.named_parameters():
            assert parameter.grad is not None
            wanted = parameter.detach() - 0.1 * parameter.grad
            assert torch.allclose(got[name], wanted, rtol=1e-4, atol=1e-6)
    assert all(torch.equal(state["mentee"][name], tensor) for name, tensor in weights_of(mentee).items())


def test_gradients_are_clipped_per_model(linears: Any) -> None:
    # A step of 0.1 times a gradient of norm at most 0.01.
    make = linears()
    client, mentee = made(make), make.model("shared")
    start = weights_of(make.model("private"))
    reply: Any = FedKD(clip_norm=0.01).train(client, message(weights_of(mentee)))
    for step in ({n: t - start[n] for n, t in weights_of(client.model).items()}, reply["update"]):
        assert float(sum(t.square().sum() for t in step.values())) ** 0.5 == pytest.approx(0.001, rel=1e-3)


# the exchange


def test_the_schedule(linears: Any) -> None:
    method = FedKD()
    assert method.energy(0.0) == 0.95 and method.energy(1.0) == pytest.approx(0.98)
    recorder = RecordingEngine()
    run_rounds(InMemoryClients(method, several(linears(), *SHARED)), 3, wrap=recorder).checked()
    assert [m["energy"] for m in received(recorder)] == pytest.approx([0.96] * 2 + [0.97] * 2 + [0.98] * 2)


def test_the_mentee_moves_by_the_mean_update(linears: Any) -> None:
    makers = several(linears(norm=True), *SHARED)
    start = weights_of(makers[0]().model)  # what the server starts from
    for weights, (p, q) in {"uniform": (0.5, 0.5), "samples": (3 / 8, 5 / 8)}.items():
        method = FedKD(energy_start=1.0, energy_end=1.0, weights=weights)  # type: ignore[arg-type]
        a, b = (method.train(maker(), message(start))["update"] for maker in makers)
        assert isinstance(a, dict) and isinstance(b, dict)
        server: Any = run_rounds(InMemoryClients(method, makers)).checked().server["mentee"]
        for name in start:
            if name.endswith("num_batches_tracked"):
                assert server[name].item() == 1
            else:
                assert torch.allclose(server[name], start[name] + p * a[name] + q * b[name], rtol=1e-4, atol=1e-6)


def test_all_mentees_are_equal_whatever_they_received(linears: Any) -> None:
    # Client 1 is away in round 2 and gets the whole mentee in round 3, client 0 only ever gets updates after round 1.
    make = linears(pixels=12, features=9)
    turns = {1: ("0", "1"), 2: ("0",), 3: ("0", "1")}
    recorder = RecordingEngine()
    method = FedKD(energy_start=0.5, energy_end=0.6)
    outcome = run_rounds(
        InMemoryClients(method, several(make, *SHARED)), 3, wrap=recorder, selected=lambda n: turns[n]
    ).checked()
    got = [(m["client"], bool(m["mentee"]), bool(m["update"])) for m in received(recorder)]
    whole, update = (True, False), (False, True)
    assert got == [("0", *whole), ("1", *whole), ("0", *update), ("0", *update), ("1", *whole)]
    held: list[Any] = [outcome.client(k)["state"] for k in "01"]
    for name, tensor in held[0]["mentee"].items():
        assert torch.equal(tensor, held[1]["mentee"][name])
    factors = [m["update"]["backbone.1.weight"] for m in received(recorder) if m["update"]]
    assert all(isinstance(part, Mapping) for part in factors)  # it was compressed at all


def test_a_client_that_failed_receives_the_whole_mentee(linears: Any) -> None:
    recorder = RecordingEngine()
    faulty = FaultyEngine(failing_clients=lambda call, tasks: ["1"] if call.number == 2 else [])
    run_rounds(InMemoryClients(FedKD(), several(linears(), *SHARED)), 4, wrap=lambda engine: faulty(recorder(engine)))
    assert [broken[:2] for broken in faulty.injected] == [(2, "1")]
    whole = [bool(m["mentee"]) for m in received(recorder) if m["client"] == "1"]
    assert whole == [True, False, True, False]


def test_bytes_by_hand(linears: Any) -> None:
    # One sample: every weight gradient is an outer product, so the update of a matrix has rank 1. With 8 pixels, 6
    # features and 3 classes: 6 + 8 + 1 and 3 + 6 + 1 numbers for the matrices, 6 and 3 for the biases, 34 in all.
    # Whole: 48 + 6 + 18 + 3 = 75. The mean of one client's update has rank 1 too, so 34 go down as well.
    make = linears(pixels=8, features=6)
    outcome = run_rounds(InMemoryClients(FedKD(), several(make, [1])), 2).checked()
    assert outcome.round_stats[0].down == {"auxiliary": 0, "energy": 0, "mentee": 4 * 75, "update": 0}
    assert outcome.round_stats[1].down == {"auxiliary": 0, "energy": 0, "mentee": 0, "update": 4 * 34}
    for stats in outcome.round_stats:
        assert stats.up == {"update": 4 * 34, "samples": 0}


def test_bytes_never_exceed_the_whole_mentee() -> None:
    mentee = build(ModelSpec("tiny-mobile"), shape=(1, 8, 8), classes=4)
    whole = sum(t.numel() * t.element_size() for t in mentee.state_dict().values())
    with ToyFederation(FedKD, {}) as toy:
        outcome = toy.run(toy.config(rounds=3)).checked()
    assert outcome.round_stats[0].down["mentee"] == 5 * whole
    for stats in outcome.round_stats:
        assert 0 < stats.up["update"] < 5 * whole
    for stats in outcome.round_stats[1:]:
        assert stats.down["mentee"] == 0 and 0 < stats.down["update"] < 5 * whole


def test_the_map_is_trained_and_persists(linears: Any) -> None:
    client, mentee = made(linears()), weights_of(linears().model("shared"))
    start = weights_of(FedKD().hidden_map(client, 3))
    FedKD().train(client, message(mentee))
    learned: Any = client.state["map"]
    assert not torch.equal(start["weight"], learned["weight"])
    client.settings = dataclasses.replace(client.settings, epochs=0)
    FedKD().train(client, message(mentee))
    kept: Any = client.state["map"]
    assert torch.equal(kept["weight"], learned["weight"])


@pytest.mark.parametrize(
    ("fields", "expected_error"),
    [
        ({"energy_start": 0.0}, r"^method.energy_start is 0.0; expected a number above 0 and at most 1"),
        ({"energy_end": 1.1}, r"^method.energy_end is 1.1; expected a number"),
        ({"clip_norm": 0.0}, r"^method.clip_norm is 0.0; expected a number above 0"),
    ],
)
def test_wrong_options_raise(fields: dict[str, float], expected_error: str) -> None:
    with pytest.raises(InputError, match=expected_error):
        catalogue.make({"name": "fedkd", **fields})


OPTIONS: list[dict[str, Any]] = [
    {"weights": "samples", "auxiliary": "tiny-cnn@0.5", "clip_norm": None},
    {"kl_reduction": "mean", "gradient_through_scale": True, "energy_start": 0.3, "energy_end": 0.4},
]


@pytest.mark.parametrize("check", ["independent_of_memory_budget", "client_with_one_sample"])
@pytest.mark.parametrize("fields", OPTIONS)
def test_options_pass_the_battery(fields: dict[str, Any], check: str) -> None:
    testing.run_check(check, FedKD, fields)
