"""InCo in whole rounds: what it changes, what it records, and that it costs no bytes."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.filters.inco_servers import CLASS_COUNTS, MODELS, random_update, server_with_filter

from polyfed.core.filter import Update
from polyfed.core.shared_model import apply_update
from polyfed.filters.inco import InCo
from polyfed.methods.fedavg import FedAvg
from polyfed.testing.toy_federation import ToyFederation


@dataclass(frozen=True)
class FinishedRun:
    result: dict[str, Any]
    events: list[dict[str, Any]]


@functools.cache
def finished_run(splitting: str, inco: str, engine: str = "serial") -> FinishedRun:
    """Run two rounds of FedAvg, once for all tests that read the result."""
    with ToyFederation(FedAvg, {}) as toy:
        toy.models = MODELS.get(splitting, ["tiny-resnet18"])
        server_filter = json.loads(inco)
        settings = toy.settings(
            CLASS_COUNTS, splitting=splitting, server_filter=server_filter, engine={"name": engine}
        )
        settings["evaluate"] = {"personal": False}
        folder = toy.new_folder()
        result = toy.experiment(settings, folder)
        return FinishedRun(result, method_events(folder))


def method_events(folder: Path) -> list[dict[str, Any]]:
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return [event for event in events if event["event"] == "method"]


NONE, INCO = json.dumps("none"), json.dumps("inco")
OFF = json.dumps({"name": "inco", "rule": "off"})


@pytest.mark.parametrize("splitting", ["none", "stage", "layer", "width"])
def test_off_is_bit_identical_to_no_filter(splitting: str) -> None:
    off, none, on = (finished_run(splitting, filter_) for filter_ in (OFF, NONE, INCO))
    assert off.result["state_hash"] == none.result["state_hash"]
    assert on.result["state_hash"] != none.result["state_hash"]


@pytest.mark.parametrize("splitting", ["stage", "layer", "width"])
def test_no_bytes_are_added(splitting: str) -> None:
    def sizes(which: str) -> Mapping[str, Any]:
        counted: Mapping[str, Any] = finished_run(splitting, which).result["bytes"]
        return counted

    assert sizes(INCO) == sizes(NONE)


@pytest.mark.parametrize("splitting", ["stage", "width"])
def test_the_pool_gives_bit_identical_results(splitting: str) -> None:
    assert (
        finished_run(splitting, INCO, "pool").result["state_hash"]
        == finished_run(splitting, INCO).result["state_hash"]
    )


@pytest.mark.parametrize(("splitting", "targets"), [("none", 8), ("stage", 8), ("layer", 3), ("width", 6)])
def test_coefficients_are_recorded_every_round(splitting: str, targets: int) -> None:
    events = finished_run(splitting, INCO).events
    assert [(event["kind"], event["round"]) for event in events] == [("inco", 1), ("inco", 2)]
    for event in events:
        assert len(event["layers"]) == targets
        assert all(len(event[fact]) == targets for fact in ("theta", "beta", "positive"))
        assert all(0 <= theta <= 5 for theta in event["theta"])
        assert all(0 <= share <= 1 for share in event["positive"])
        assert any(theta > 0 for theta in event["theta"])
    assert finished_run(splitting, NONE).events == []


# a single update


@pytest.mark.parametrize("rule", ["released", "theorem", "sum"])
def test_targets_are_mixed_from_the_original_updates_and_nothing_else_changes(rule: Any) -> None:
    server = server_with_filter("stage", rule=rule, pairing="resnet_paper")
    assert isinstance(server.filter, InCo)
    update = random_update(server)
    before = {name: tensor.clone() for name, tensor in update.change.items()}
    after = server.filter.apply(server, update)
    anchors = dict(server.filter.pairs(server))
    assert list(after) == list(before)
    assert all(torch.equal(update.change[name], before[name]) for name in before)
    for name in before:
        if name in anchors:
            expected = server.filter.mix(before[name], before[anchors[name]])[0]
            assert torch.equal(after[name], expected) and not torch.equal(after[name], before[name])
        else:  # anchors, norms, shortcuts, stem, head, statistics
            assert after[name] is update.change[name]


def test_layers_without_an_owner_keep_their_value() -> None:
    target = "backbone.trunk.stages.1.1.layers.0.conv.weight"
    server = server_with_filter("stage")
    update = random_update(server)
    part = {name: tensor for name, tensor in update.change.items() if name != target}
    weight = {name: tensor for name, tensor in update.weight.items() if name != target}
    model = {name: torch.ones(tensor.shape, dtype=tensor.dtype) for name, tensor in update.change.items()}
    after = apply_update(server, model, Update(part, weight))
    assert torch.equal(after[target], model[target])
    assert target not in server.events[0]["layers"]  # type: ignore[operator]
    assert len(server.events[0]["layers"]) == 7  # type: ignore[arg-type]


def test_with_widths_only_owned_positions_are_mixed_and_moved() -> None:
    # Only narrow clients in the round: the block of 4 x 4 kernels of stage 1 is owned, the rest has no update at all.
    target, anchor = (f"backbone.trunk.stages.0.{at}.conv.weight" for at in ("1.layers.0", "0.layers.1"))
    server = server_with_filter("width", rule="theorem")
    assert isinstance(server.filter, InCo)
    owned = torch.zeros(8, 8, 3, 3, dtype=torch.bool)
    owned[:4, :4] = True
    update = random_update(server, {target: owned, anchor: owned})
    model = {name: torch.ones(tensor.shape, dtype=tensor.dtype) for name, tensor in update.change.items()}
    after = apply_update(server, model, update)
    assert torch.equal(after[target][~owned], model[target][~owned])
    alone = server.filter.mix(*(update.change[name][:4, :4] for name in (target, anchor)))[0]
    assert torch.allclose(after[target][:4, :4], 1 + alone, rtol=1e-12, atol=1e-15)
