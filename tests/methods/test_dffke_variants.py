"""The variants of DFFKE for ablations: what each of them changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.methods.dffke_runs import FLOAT, ROWS, SMALL, WIDTH, messages, recorded_run
from tests.tiers import always_if
from torch import nn

from polyfed import testing
from polyfed.controls.dffke import (
    Discrepancy,
    DockingNoise,
    EmbeddingLoss,
    LazyReplay,
    ReverseKL,
    WarmDecoder,
    discrepancy,
    reverse_kl,
)
from polyfed.core.client import copy_into
from polyfed.core.payload import view
from polyfed.testing.toy_federation import CLASS_COUNTS, CLASSES

VARIANTS = [DockingNoise, ReverseKL, EmbeddingLoss, Discrepancy, WarmDecoder, LazyReplay]
STATEFUL = (WarmDecoder, LazyReplay)  # clients keep more between rounds


@pytest.mark.parametrize(
    ("variant", "check"),
    [
        pytest.param(variant, check, marks=always_if(variant in STATEFUL or number == k % 2))
        for k, variant in enumerate(VARIANTS)
        for number, check in enumerate(("resumed_equals_uninterrupted", "failing_clients_tolerated"))
    ],
)
def test_variants_pass_the_battery(variant: Any, check: str) -> None:
    testing.run_check(check, variant, SMALL)


def test_codes_from_clean_samples_differ_from_the_noised_upload() -> None:
    privacy = {"embeddings": {"clip": 5.0, "noise": 2.0}}
    _, recorder, _ = recorded_run(method=DockingNoise, rounds=1, privacy=privacy)
    uploads = messages(recorder, "embed", "up")
    for name, received in messages(recorder, "teach").items():
        docking = nn.Linear(64, WIDTH)
        copy_into(docking, received[0].weights("docking"))
        with torch.no_grad():
            codes = docking(uploads[name][0].tensor("embeddings"))
        assert not torch.allclose(codes, received[0].weights("codes")[name], atol=1e-4)


def test_reverse_kl_by_hand() -> None:
    # T = (3/4, 1/4), S = (1/2, 1/2): KL(S||T) = 1/2 log 2/3 + 1/2 log 2
    target, z = torch.tensor([[0.75, 0.25]]), torch.zeros(1, 2)
    assert float(reverse_kl(z, target)) == pytest.approx(0.143841, abs=1e-6)
    certain = torch.tensor([[50.0, -50.0]], requires_grad=True)
    loss = reverse_kl(certain, torch.tensor([[0.0, 1.0]]))
    loss.backward()  # type: ignore[no-untyped-call]
    assert certain.grad is not None and torch.isfinite(loss) and torch.isfinite(certain.grad).all()


def test_embedding_loss_sends_codes_and_docking_layers() -> None:
    # h numbers more per output, and from round 2 the trained docking layer goes up
    outcome, _, _ = recorded_run(method=EmbeddingLoss, rounds=2)
    clients, rows, replayed = len(CLASS_COUNTS), sum(ROWS), 2 * 8 * len(CLASS_COUNTS)
    first, second = outcome.round_stats
    assert first.up["targets_codes"] == second.up["targets_codes"] == FLOAT * rows * WIDTH
    assert first.down["targets_codes"] == FLOAT * rows * WIDTH * (clients - 1)
    assert "memory_codes" not in first.up and "docking" not in first.up
    assert second.up["memory_codes"] == FLOAT * replayed * WIDTH
    assert second.up["memory"] == FLOAT * replayed * CLASSES
    assert second.up["docking"] == second.down["docking"] == FLOAT * (64 + 1) * WIDTH * clients


def test_embedding_loss_trains_the_docking_layer() -> None:
    _, recorder, states = recorded_run(method=EmbeddingLoss, rounds=1)
    for name, received in messages(recorder, "teach").items():
        assert not torch.equal(states[name]["docking"]["weight"], received[0].weights("docking")["weight"])


@pytest.mark.parametrize("measure", ["kl", "mae", "mse"])
def test_discrepancies(measure: str) -> None:
    teacher, student = torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    t, s = teacher.softmax(1), student.softmax(1)
    expected = {"kl": 0.1 * (t * (t / s).log()).sum(), "mae": (t - s).abs().mean(), "mse": F.mse_loss(s, t)}
    assert float(discrepancy(teacher, student, measure)) == pytest.approx(float(expected[measure]), abs=1e-6)
    assert float(discrepancy(teacher, teacher, measure)) == pytest.approx(0, abs=1e-7)


def test_discrepancy_changes_the_decoder() -> None:
    plain, changed = (
        messages(recorded_run(method=variant, rounds=1)[1], "teach")["0"][0].weights("decoder")
        for variant in (ReverseKL, Discrepancy)
    )
    assert not torch.equal(plain["grow.1.weight"], changed["grow.1.weight"])


def test_a_warm_decoder_continues_from_the_last_round() -> None:
    outcome, recorder, _ = recorded_run({"decoder_epochs": 0, "least_steps": 0}, method=WarmDecoder, rounds=2)
    first, second = (message.weights("decoder") for message in messages(recorder, "teach")["0"])
    assert all(torch.equal(first[name], second[name]) for name in first)  # not trained in between
    assert torch.equal(view(outcome.server).weights("decoder")["grow.1.weight"], first["grow.1.weight"])


def test_lazy_replay_does_not_resend_missed_rounds() -> None:
    participants = {1: ("0", "1"), 2: ("0", "1", "2")}
    _, recorder, states = recorded_run(
        shares=CLASS_COUNTS[:3], selected=lambda number: participants[number], method=LazyReplay
    )
    assert "missing" not in messages(recorder, "teach")["2"][0]
    assert list(states["2"]["buffer"]) == ["000002"]
