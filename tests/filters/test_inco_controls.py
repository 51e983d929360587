"""The controls of InCo: anchors without meaning, and the change of length alone."""

from __future__ import annotations

import pytest
import torch
from tests.filters.inco_servers import random_update, server_with_filter
from torch import Tensor

from polyfed.controls.inco import AnchorControl, LengthControl
from polyfed.core.filter import Update
from polyfed.core.server import Server
from polyfed.errors import InputError
from polyfed.filters.inco import InCo
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
    g_k, g_0 = (0.01 * torch.randn(2, 2, 3, 3, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    mixed, mean = (LengthControl(length=length).mix(g_k, g_0).update for length in ("mixed", "mean"))
    wanted = {"mixed": InCo().mix(g_k, g_0).update.norm(dim=(2, 3)), "mean": (norms(g_k) + norms(g_0)) / 2}
    for name, update in {"mixed": mixed, "mean": mean}.items():
        assert torch.allclose(norms(update), wanted[name])
        assert torch.allclose(update / norms(update)[..., None, None], g_k / norms(g_k)[..., None, None], atol=1e-6)
    assert not torch.allclose(norms(mixed), norms(mean), rtol=0.01)


def test_the_length_control_leaves_positions_without_an_owner() -> None:
    g_k, g_0 = torch.tensor([[3.0, 4.0, 7.0]]), torch.tensor([[0.0, 1.0, 9.0]])
    owned = torch.tensor([[True, True, False]])
    update = LengthControl(length="mean").mix(g_k, g_0, owned).update  # the norms of owned positions are 5 and 1
    assert torch.allclose(update, torch.tensor([[1.8, 2.4, 7.0]]))


def norms(kernels: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(kernels, dim=(2, 3))
    return norm
