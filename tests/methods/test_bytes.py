"""Traffic per round equals the formulas exactly; the classes of every client are known."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from polyfed import catalogue
from polyfed.core.class_tables import ClassTable
from polyfed.core.codec import encode
from polyfed.core.payload import Value
from polyfed.models import ModelSpec, build
from polyfed.testing.toy_federation import CLASS_COUNTS, ToyFederation

FLOAT = 4
CLASSES, FEATURES, CLIENTS = 4, 64, 5
# classes present on the clients of the toy federation: {0, 1}, {1, 2}, {2, 3}, {0, 3}, {0, 1, 2, 3}
PRESENT = [2, 2, 2, 2, 4]


def traffic(
    name: str, fields: dict[str, Any] | None = None, **changed: Any
) -> list[tuple[dict[str, int], dict[str, int]]]:
    with ToyFederation(catalogue.load(name), fields or {}) as toy:
        outcome = toy.run(toy.config(**changed)).checked()
    return [(stats.up, stats.down) for stats in outcome.round_stats]


def test_the_toy_federation_has_the_expected_classes() -> None:
    assert [sum(count > 0 for count in share) for share in CLASS_COUNTS] == PRESENT


def test_fedproto() -> None:
    # up: m_k (d + 1) numbers, the counts are the 1. down: d numbers per known class; none before the first round.
    first, second = traffic("fedproto")
    up = {"prototypes": FLOAT * sum(PRESENT) * (FEATURES + 1)}
    assert first == (up, {"prototypes": 0})
    assert second == (up, {"prototypes": FLOAT * CLIENTS * CLASSES * FEATURES})


def test_fedproto_does_not_send_small_classes() -> None:
    # of the 12 (client, class) pairs six have fewer than five samples: 4 at client 0, 4 at client 3, 3 3 3 3 at 4
    small = sum(0 < count < 5 for share in CLASS_COUNTS for count in share)
    first, _ = traffic("fedproto", {"min_class_count": 5})
    assert first[0] == {"prototypes": FLOAT * (sum(PRESENT) - small) * (FEATURES + 1)}
    assert small == 6


def test_feddistill() -> None:
    # up: m_k (C + 1) numbers. down: C numbers for each class that another client has reported; here that is every
    # class for every client, so C * C.
    first, second = traffic("feddistill")
    up = {"outputs": FLOAT * sum(PRESENT) * (CLASSES + 1)}
    assert first == (up, {"outputs": 0})
    assert second == (up, {"outputs": FLOAT * CLIENTS * CLASSES * CLASSES})


def test_feddistill_sends_no_target_from_the_client_itself() -> None:
    # Clients with classes {0}, {0, 1}, {2}. Others' classes: {0, 1, 2} for client 0, {0, 2} for 1, {0, 1} for 2.
    with ToyFederation(catalogue.load("feddistill"), {}) as toy:
        outcome = toy.run(toy.config([(5, 0, 0, 0), (5, 5, 0, 0), (0, 0, 5, 0)])).checked()
    assert outcome.round_stats[1].down == {"outputs": FLOAT * (3 + 2 + 2) * CLASSES}
    assert outcome.round_stats[1].up == {"outputs": FLOAT * (1 + 2 + 1) * (CLASSES + 1)}


def test_lg_fedavg() -> None:
    # #h each way; the number of samples is a JSON scalar and weighs nothing but overhead
    head = FLOAT * (FEATURES * CLASSES + CLASSES)
    for up, down in traffic("lg-fedavg"):
        assert up == {"head": CLIENTS * head, "samples": 0}
        assert down == {"head": CLIENTS * head}


@pytest.mark.parametrize("model", ["tiny-cnn", "tiny-mlp", "tiny-resnet"])
def test_fedavg(model: str) -> None:
    # #theta each way, and the buffers where there are any: two vectors per BatchNorm and a counter of 8 bytes
    made = build(ModelSpec(model), shape=(1, 8, 8), classes=CLASSES)
    theta = FLOAT * sum(p.numel() for p in made.parameters())
    norms = [m for m in made.modules() if isinstance(m, nn.BatchNorm2d)]
    buffers = sum(FLOAT * 2 * m.num_features + 8 for m in norms)
    assert bool(norms) == (model == "tiny-resnet")
    for up, down in traffic("fedavg", models={"group": [model]}):
        assert up == {"model": CLIENTS * (theta + buffers), "samples": 0}
        assert down == {"model": CLIENTS * (theta + buffers)}


def test_only_participants_cause_traffic() -> None:
    with ToyFederation(catalogue.load("lg-fedavg"), {}) as toy:
        outcome = toy.run(selected=lambda number: ("1", "4")).checked()
    head = FLOAT * (FEATURES * CLASSES + CLASSES)
    assert [stats.down for stats in outcome.round_stats] == [{"head": 2 * head}] * 2


def test_local_training_sends_nothing() -> None:
    assert traffic("local") == [({}, {}), ({}, {})]


def test_encoding_overhead_at_the_size_of_the_papers() -> None:
    """CIFAR-100 with 512 features and 44 classes at a client: the whole frame against the formula's bytes.

    FedDistill's message is small (44 rows of 100 numbers), so the fixed part of a frame, some 400 bytes, weighs more.
    """
    some = torch.arange(44) * 2
    counts = torch.ones(44, dtype=torch.int64)
    messages: dict[str, tuple[dict[str, Value], int, float]] = {
        "fedproto": ({"prototypes": ClassTable(some, torch.rand(44, 512), counts)}, 4 * 44 * 513, 0.01),
        "lg-fedavg": (
            {"head": {"weight": torch.rand(100, 512), "bias": torch.rand(100)}, "samples": 375},
            205_200,
            0.01,
        ),
        "feddistill": ({"outputs": ClassTable(some, torch.rand(44, 100), counts)}, 4 * 44 * 101, 0.025),
    }
    for payload, formula, allowed in messages.values():
        frame = encode(payload)
        assert sum(frame.fields.values()) == formula
        assert len(frame.data) <= formula * (1 + allowed)
