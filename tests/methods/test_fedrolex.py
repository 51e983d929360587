"""FedRolex: the window of channels that a round trains."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.methods.sub_models import PLAIN, WHOLE, replies, server_of

from polyfed.core.codec import decode
from polyfed.core.payload import Payload
from polyfed.core.shared_model import cut_of
from polyfed.methods.fedavg import FedAvg
from polyfed.methods.fedrolex import FedRolex
from polyfed.testing.engine_wrappers import RecordingEngine
from polyfed.testing.toy_federation import CLASS_COUNTS, ToyFederation

STEM = "backbone.trunk.stem.0.conv.weight"
LAST = "backbone.trunk.block.layers.1.conv.weight"
WIDEN = "backbone.trunk.widen.conv.weight"


def test_every_channel_is_trained_equally_often() -> None:
    # K = 24 outputs of which m = 12 are kept, 64 of which 32: over K rounds every one m times.
    with ToyFederation(FedRolex, {}) as toy:
        server = server_of(toy)
        model = server.memory.weights("model")
        kept = {STEM: torch.zeros(24, dtype=torch.int64), WIDEN: torch.zeros(64, dtype=torch.int64)}
        for server.round in range(1, 65):
            places = cut_of(server, "0", model, FedRolex().rule(server, "0"))
            for name, total in kept.items():
                index = places[name][0]
                assert index is not None
                if server.round <= len(total):
                    total += torch.bincount(index, minlength=len(total))
                assert index.tolist() == [(server.round + i) % len(total) for i in range(len(total) // 2)]
            assert torch.equal(places[STEM][0], places[LAST][0])  # type: ignore[arg-type]  # a residual sum
            assert torch.equal(places[LAST][0], places[WIDEN][1])  # type: ignore[arg-type]  # in is the producer's out
    assert [set(total.tolist()) for total in kept.values()] == [{12}, {32}]


def test_with_all_widths_1_it_is_bit_identical_to_fedavg() -> None:
    with ToyFederation(FedRolex, PLAIN) as toy:
        config = toy.config(models={"group": [WHOLE]})
        rolled = toy.run(config).checked().server["model"]
        whole = toy.run(config, method=FedAvg(weights="uniform")).checked().server["model"]
    assert isinstance(rolled, dict) and isinstance(whole, dict)
    assert all(torch.equal(rolled[name], whole[name]) for name in whole)


def test_clients_change_only_the_window_of_the_round() -> None:
    with ToyFederation(FedRolex, {**PLAIN}) as toy:
        recorder = RecordingEngine()
        outcome = toy.run(toy.config(rounds=1), wrap=recorder, selected=lambda number: ("0",)).checked()
        before = server_of(toy).memory.weights("model")
    after: Any = outcome.server["model"]
    window, rest = torch.arange(1, 13), torch.tensor([0, *range(13, 24)])
    sent = next(decode(f) for m in recorder.down if m.steps == ("train",) for f in m.frames if "model" in decode(f))
    assert torch.equal(sent.weights("model")[STEM], before[STEM][window])
    back = replies(recorder, "train")["0"].weights("model")[STEM]
    assert torch.equal(after[STEM][window], back) and not torch.equal(back, before[STEM][window])
    assert torch.equal(after[STEM][rest], before[STEM][rest])


@pytest.mark.parametrize("rounds", [1, 3])
def test_the_window_of_the_last_round_is_evaluated(rounds: int) -> None:
    with ToyFederation(FedRolex, {}) as toy:
        outcome = toy.run(toy.config(CLASS_COUNTS[:2], rounds=rounds)).checked()
        server = server_of(toy)
        server.state, server.round = outcome.server, rounds
    model: Any = outcome.server["model"]
    half, whole = (Payload(FedRolex().publish(server).each[k]) for k in "01")
    assert torch.equal(half.weights("model")[STEM], model[STEM][rounds : rounds + 12])
    assert torch.equal(whole.weights("model")[STEM], model[STEM])  # full width: the server's model itself
    statistics: Any = outcome.server["statistics 1"]  # of half the width, placed as the window is
    name = "backbone.trunk.stem.0.norm.running_mean"
    assert torch.equal(half.weights("statistics")[name], statistics[name][rounds : rounds + 12])
