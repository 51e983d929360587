"""The controls of InCo: anchors without meaning, and the change of length alone."""

from __future__ import annotations

import pytest
import torch
from scripts.inco_controls import AnchorControl, LengthControl
from tests.filters.inco_servers import random_update, server_with_filter
from torch import Tensor

from polyfed.core.filter import Update
from polyfed.core.server import Server
from polyfed.errors import InputError
from polyfed.methods.fedavg import FedAvg
from polyfed.testing.toy_federation import ToyFederation


def used_anchors(control: str) -> tuple[Server, Update, dict[str, Tensor]]:
    """Return the g_0 of every target: what the rule `sum` adds to its update."""
    server = server_with_filter("stage", "inco-control", control=control, rule="sum", normalise=False)
    assert isinstance(server.filter, AnchorControl)
    update = random_update(server)
    after = server.filter.apply(server, update)
    layers = [str(name) for name in server.events[0]["layers"]]  # type: ignore[union-attr]
    return server, update, {name: after[name] - update.change[name] for name in layers}


@pytest.mark.parametrize("control", ["permuted", "gaussian", "other_stage"])
def test_controls_have_the_norm_of_the_anchor_and_nothing_else_of_it(control: str) -> None:
    server, update, used = used_anchors(control)
    again = used_anchors(control)[2]
    assert isinstance(server.filter, AnchorControl)
    for target, anchor in server.filter.pairs(server):
        real = update.change[anchor]
        assert torch.equal(used[target], again[target])  # from a named random stream
        assert torch.allclose(used[target].norm(), real.norm())
        assert not torch.allclose(used[target], real)
        same_entries = torch.allclose(used[target].flatten().sort()[0], real.flatten().sort()[0])
        assert same_entries == (control == "permuted")
    first, second = list(used.values())[:2]  # of one stage, so that their anchor is the same
    assert torch.allclose(first, second) == (control == "other_stage")


def test_the_anchor_of_another_stage_is_repeated_entry_by_entry() -> None:
    _, update, used = used_anchors("other_stage")
    # stage 1 (8 x 8 kernels) from the anchor of stage 2 (12 x 12), the last stage from the first
    names = ["backbone.trunk.stages.1.0.layers.1.conv.weight", "backbone.trunk.stages.0.0.layers.1.conv.weight"]
    next_one, first = (update.change[name].flatten() for name in names)
    a, *_, b = (entries.flatten() for entries in used.values())
    assert torch.allclose(a / a.norm(), next_one[: len(a)] / next_one[: len(a)].norm())
    assert torch.allclose(b[: len(first)] / b.norm(), b[len(first) : 2 * len(first)] / b.norm())
    assert torch.allclose(b[: len(first)] / b[: len(first)].norm(), first / first.norm())


def test_another_stage_needs_two_anchors() -> None:
    fields = {"name": "inco-control", "pairing": "resnet_paper", "control": "other_stage"}
    with ToyFederation(FedAvg, {}) as toy:
        toy.models = ["tiny-resnet10"]  # one pair in all
        federation = toy.federation(toy.config(server_filter=fields))
        with pytest.raises(InputError, match="all layers of this model have the same anchor"):
            federation.check(federation.profiles())


def test_the_length_control_changes_the_norm_alone() -> None:
    g_k, g_0 = (torch.randn(3, 3, generator=torch.Generator().manual_seed(seed)).double() for seed in (1, 2))
    update = LengthControl().mix(g_k, g_0).update
    assert float(update.norm()) == pytest.approx((float(g_k.norm()) + float(g_0.norm())) / 2)
    assert torch.allclose(update / update.norm(), g_k / g_k.norm())
