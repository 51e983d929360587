"""InCo in whole rounds: what it leaves alone, what it records, and that it costs no bytes."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from polyfed.core.filter import Update
from polyfed.core.one_model import apply_update
from polyfed.core.server import Server
from polyfed.filters.inco import InCo
from polyfed.methods.fedavg import FedAvg
from polyfed.testing.toy_federation import ToyFederation

STAGES = ["tiny-resnet10", "tiny-resnet18"]
KINDS: dict[str, list[Any]] = {
    "stage": STAGES,
    "layer": ["tiny-vit-2", "tiny-vit-3"],
    "width": [{"name": "tiny-resnet-wide", "width": 0.5}, "tiny-resnet-wide"],
}
FEW = ((4, 4, 0, 0), (0, 4, 4, 0), (0, 0, 4, 4))  # clients in turn small and large


@dataclass(frozen=True)
class Ended:
    result: dict[str, Any]
    told: list[dict[str, Any]]


@functools.cache
def ended(splitting: str, inco: str, engine: str = "serial") -> Ended:
    """Two rounds of FedAvg; made once for all tests that look at them."""
    with ToyFederation(FedAvg, {}) as toy:
        toy.models = KINDS.get(splitting, ["tiny-resnet18"])
        asked = json.loads(inco)
        settings = toy.settings(FEW, splitting=splitting, server_filter=asked, engine={"name": engine})
        settings["evaluate"] = {"personal": False}
        folder = toy.new_folder()
        result = toy.experiment(settings, folder)
        return Ended(result, told(folder))


def told(folder: Path) -> list[dict[str, Any]]:
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return [event for event in events if event["event"] == "method"]


NONE, INCO = json.dumps("none"), json.dumps("inco")
OFF = json.dumps({"name": "inco", "rule": "off"})


@pytest.mark.parametrize("splitting", ["none", "stage", "layer", "width"])
def test_off_is_no_filter_to_the_last_bit(splitting: str) -> None:
    off, none, on = (ended(splitting, asked) for asked in (OFF, NONE, INCO))
    assert off.result["state_hash"] == none.result["state_hash"]
    assert on.result["state_hash"] != none.result["state_hash"]


@pytest.mark.parametrize("splitting", ["stage", "layer", "width"])
def test_no_bytes_are_added(splitting: str) -> None:
    def sizes(which: str) -> Mapping[str, Any]:
        counted: Mapping[str, Any] = ended(splitting, which).result["bytes"]
        return counted

    assert sizes(INCO) == sizes(NONE)


@pytest.mark.parametrize("splitting", ["stage", "width"])
def test_the_pool_ends_with_the_same_bits(splitting: str) -> None:
    assert ended(splitting, INCO, "pool").result["state_hash"] == ended(splitting, INCO).result["state_hash"]


@pytest.mark.parametrize(("splitting", "targets"), [("none", 8), ("stage", 8), ("layer", 3), ("width", 6)])
def test_coefficients_are_recorded_every_round(splitting: str, targets: int) -> None:
    events = ended(splitting, INCO).told
    assert [(event["kind"], event["round"]) for event in events] == [("inco", 1), ("inco", 2)]
    for event in events:
        assert len(event["layers"]) == targets
        assert all(len(event[fact]) == targets for fact in ("theta", "beta", "positive"))
        assert all(0 <= theta <= 5 for theta in event["theta"])
        assert all(0 <= share <= 1 for share in event["positive"])
        assert any(theta > 0 for theta in event["theta"])
    assert ended(splitting, NONE).told == []


# one update, by hand


def server_of(toy: ToyFederation, splitting: str, **fields: Any) -> Server:
    toy.models = KINDS[splitting]
    made = toy.federation(toy.config(FEW, splitting=splitting, server_filter={"name": "inco", **fields}))
    return made.server(made.profiles())


def update_of(server: Server, owned: Mapping[str, Tensor] | None = None) -> Update:
    """A random change of everything; `owned` says where somebody owns it, elsewhere it is zero."""
    assert server.family is not None
    stream = torch.Generator().manual_seed(3)
    change: dict[str, Tensor] = {}
    weight: dict[str, Tensor] = {}
    for name, like in server.family.skeleton().state_dict().items():
        shape = like.shape
        weight[name] = torch.ones(shape, dtype=torch.float64)
        if owned is not None and name in owned:
            weight[name] = owned[name].double()
        if like.is_floating_point():
            change[name] = torch.randn(shape, generator=stream, dtype=torch.float64) * 0.01 * (weight[name] > 0)
        else:
            change[name] = torch.ones(shape, dtype=like.dtype)
    return Update(change, weight)


@pytest.mark.parametrize("rule", ["abs_ref", "theorem", "sum"])
def test_targets_are_mixed_from_what_was_there_before_and_nothing_else_is_touched(rule: Any) -> None:
    with ToyFederation(FedAvg, {}) as toy:
        server = server_of(toy, "stage", rule=rule, pairing="resnet_paper")
    assert isinstance(server.filter, InCo)
    update = update_of(server)
    before = {name: tensor.clone() for name, tensor in update.change.items()}
    after = server.filter.apply(server, update)
    matched = dict(server.filter._pairs(server))
    assert list(after) == list(before)
    assert all(torch.equal(update.change[name], before[name]) for name in before)
    for name in before:
        if name in matched:
            expected = server.filter.mix(before[name], before[matched[name]])[0]
            assert torch.equal(after[name], expected) and not torch.equal(after[name], before[name])
        else:  # anchors, norms, shortcuts, stem, head, statistics
            assert after[name] is update.change[name]


def test_what_nobody_owns_keeps_its_value() -> None:
    target = "backbone.trunk.stages.1.1.layers.0.conv.weight"
    with ToyFederation(FedAvg, {}) as toy:
        server = server_of(toy, "stage")
    update = update_of(server)
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
    with ToyFederation(FedAvg, {}) as toy:
        server = server_of(toy, "width", rule="theorem")
    assert isinstance(server.filter, InCo)
    owned = torch.zeros(8, 8, 3, 3, dtype=torch.bool)
    owned[:4, :4] = True
    update = update_of(server, {target: owned, anchor: owned})
    model = {name: torch.ones(tensor.shape, dtype=tensor.dtype) for name, tensor in update.change.items()}
    after = apply_update(server, model, update)
    assert torch.equal(after[target][~owned], model[target][~owned])
    alone = server.filter.mix(*(update.change[name][:4, :4] for name in (target, anchor)))[0]
    assert torch.allclose(after[target][:4, :4], 1 + alone, rtol=1e-12, atol=1e-15)


# anchors without meaning


def anchors_used(control: str) -> tuple[Server, Update, dict[str, Tensor]]:
    """The g_0 that every target got: with the plain sum, what was added."""
    with ToyFederation(FedAvg, {}) as toy:
        server = server_of(toy, "stage", control=control, rule="sum", normalise=False)
    assert server.filter is not None
    update = update_of(server)
    after = server.filter.apply(server, update)
    layers = [str(name) for name in server.events[0]["layers"]]  # type: ignore[union-attr]
    return server, update, {name: after[name] - update.change[name] for name in layers}


@pytest.mark.parametrize("control", ["permuted", "gaussian", "other_stage"])
def test_controls_have_the_anchors_length_and_nothing_else_of_it(control: str) -> None:
    server, update, used = anchors_used(control)
    again = anchors_used(control)[2]
    assert isinstance(server.filter, InCo)
    for target, anchor in server.filter._pairs(server):
        real = update.change[anchor]
        assert torch.equal(used[target], again[target])  # drawn from a named stream
        assert torch.allclose(used[target].norm(), real.norm())
        assert not torch.allclose(used[target], real)
        same_entries = torch.allclose(used[target].flatten().sort()[0], real.flatten().sort()[0])
        assert same_entries == (control == "permuted")
    first, second = list(used.values())[:2]  # of one stage, so that their anchor is the same
    assert torch.allclose(first, second) == (control == "other_stage")


def test_another_stages_anchor_is_taken_over_entry_by_entry() -> None:
    _, update, used = anchors_used("other_stage")
    # stage 1 (8 x 8 kernels) from the anchor of stage 2 (12 x 12), the last stage from the first
    names = ["backbone.trunk.stages.1.0.layers.1.conv.weight", "backbone.trunk.stages.0.0.layers.1.conv.weight"]
    next_one, first = (update.change[name].flatten() for name in names)
    a, *_, b = (entries.flatten() for entries in used.values())
    assert torch.allclose(a / a.norm(), next_one[: len(a)] / next_one[: len(a)].norm())
    assert torch.allclose(b[: len(first)] / b.norm(), b[len(first) : 2 * len(first)] / b.norm())
    assert torch.allclose(b[: len(first)] / b[: len(first)].norm(), first / first.norm())
