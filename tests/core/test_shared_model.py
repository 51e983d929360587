"""Methods with one server model: client parts, aggregation and evaluation."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from polyfed.core.client_profile import Profile, layout
from polyfed.core.filter import ServerFilter, Update
from polyfed.core.method import Outgoing
from polyfed.core.payload import Payload, Weights
from polyfed.core.server import Server
from polyfed.core.shared_model import (
    UpdateAggregator,
    apply_update,
    holder_counts,
    initial_weights,
    weights_for_clients,
)
from polyfed.methods.fedavg import FedAvg
from polyfed.models import build
from polyfed.models.slicing import Family
from polyfed.testing.toy_federation import CLASS_COUNTS, ToyFederation

SHAPE, CLASSES = (1, 8, 8), 4
SMALL, WHOLE = "tiny-resnet@0.5", "tiny-resnet"


def server_of(*specs: str, apart: bool = False, whole: str = WHOLE, **more: Any) -> Server:
    family = Family(whole, specs, shape=SHAPE, classes=CLASSES, apart=apart)
    roster = []
    for k, spec in enumerate(specs):
        model = family.skeleton(spec)
        buffers = frozenset(name for name, _ in model.named_buffers())
        whole_layout, head = layout(model), layout(model.head)
        roster.append(Profile(str(k), spec, whole_layout, head, model.feature_dim, CLASSES, 5, spec, buffers))
    return Server(
        tuple(roster), CLASSES, 1, 0, lambda spec: build(spec, shape=SHAPE, classes=CLASSES), family=family, **more
    )


def changed(weights: Weights, seed: int) -> Weights:
    """Return changed weights, as after training."""
    stream = torch.Generator().manual_seed(seed)
    return {
        name: t + torch.randn(t.shape, generator=stream) * 0.1 if t.is_floating_point() else t + 3
        for name, t in weights.items()
    }


def variances_are_positive(weights: Weights) -> Weights:
    return {name: t.abs() if name.endswith("running_var") else t for name, t in weights.items()}


def sent_to(out: Outgoing, client: str) -> Weights:
    return Payload(out.each[client]).weights("model")


def same(a: Weights, b: Weights) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), weight=st.floats(0.01, 1000), twins=st.integers(1, 4))
def test_equal_clients_give_back_their_own_weights(seed: int, weight: float, twins: int) -> None:
    # theta + sum w (theta_k - theta) / sum w in double precision rounds to theta_k, whatever the weights are.
    server = server_of(*[WHOLE] * 4)
    model = initial_weights(server)
    trained = variances_are_positive(changed(model, seed))
    changes = UpdateAggregator(server, model)
    for k in range(twins):
        changes.add(str(k), trained, weight * (k + 1))
    assert same(apply_update(server, model, changes.mean()), trained)


def test_positions_without_a_client_do_not_change() -> None:
    server = server_of(SMALL, WHOLE)
    model = {
        name: -torch.zeros_like(t) if t.is_floating_point() else t for name, t in initial_weights(server).items()
    }
    small = sent_to(weights_for_clients(server, ["0"], model=model), "0")
    changes = UpdateAggregator(server, model)
    changes.add("0", {n: t + 1 if t.is_floating_point() else t for n, t in small.items()})
    after = apply_update(server, model, changes.mean())
    for name, tensor in after.items():
        if not tensor.is_floating_point():
            continue
        taken = int((tensor == 1).sum())
        assert taken == small[name].numel()
        others = tensor[tensor != 1]
        assert torch.equal(torch.signbit(others), torch.ones(others.shape, dtype=torch.bool)), name  # still -0


def test_a_position_is_averaged_over_the_clients_that_have_it() -> None:
    # Two clients hold the first half of the channels, one holds all: there (1 + 2) / 2, elsewhere 2.
    server = server_of(SMALL, WHOLE)
    model = initial_weights(server)
    changes = UpdateAggregator(server, model)
    for k, by in (("0", 1.0), ("1", 2.0)):
        own = server.family.take(model, server.profile(k).spec) if server.family else {}
        changes.add(k, {n: t + by if t.is_floating_point() else t for n, t in own.items()})
    update = changes.mean()
    name = next(n for n in update.change if n.endswith("conv.weight"))
    out = update.change[name].shape[0]
    assert torch.allclose(update.change[name][: out // 2], torch.tensor(1.5, dtype=torch.float64), atol=1e-6)
    assert torch.allclose(update.change[name][out // 2 :], torch.tensor(2.0, dtype=torch.float64), atol=1e-6)
    counted = holder_counts(server, model)[name]
    assert counted[: out // 2].eq(2).all()
    assert counted[out // 2 :].eq(1).all()


def test_buffers_are_not_scaled() -> None:
    server = server_of(WHOLE)
    model = initial_weights(server)
    changes = UpdateAggregator(server, model)
    changes.add("0", {n: t + 1 if t.is_floating_point() else t for n, t in model.items()}, times=3.0)
    update = changes.mean().change
    buffers = server.profile("0").buffers
    assert buffers
    for name, by in update.items():
        if by.is_floating_point():
            assert torch.allclose(by, torch.full_like(by, 1.0 if name in buffers else 3.0), atol=1e-6), name


def test_separate_architectures_are_averaged_separately() -> None:
    server = server_of("tiny-cnn", "tiny-mlp", "tiny-cnn", apart=True)
    model = initial_weights(server)
    sent = weights_for_clients(server, ["0", "1", "2"], model=model)
    assert sent.each["0"] is sent.each["2"]  # one message for both, encoded once
    changes = UpdateAggregator(server, model)
    for k, by in (("0", 1.0), ("2", 3.0)):
        changes.add(k, {n: t + by for n, t in sent_to(sent, k).items()})
    after = apply_update(server, model, changes.mean())
    again = weights_for_clients(server, ["0", "1"], model=after)
    assert same(sent_to(again, "1"), sent_to(sent, "1"))
    mine, before = sent_to(again, "0"), sent_to(sent, "0")
    assert all(torch.allclose(mine[n], t + 2, atol=1e-5) for n, t in before.items())


def test_one_architecture_gives_one_shared_message() -> None:
    server = server_of(WHOLE, WHOLE)
    sent = weights_for_clients(server, ["0", "1"], model=initial_weights(server))
    assert list(sent.shared) == ["model"]
    assert not sent.each


@dataclasses.dataclass(frozen=True)
class Halved(ServerFilter):
    def apply(self, server: Server, update: Update) -> Weights:
        return {name: by / 2 if by.is_floating_point() else by for name, by in update.change.items()}


def test_a_filter_receives_the_update_before_it_is_applied() -> None:
    server = server_of(WHOLE, filter=Halved())
    model = initial_weights(server)
    changes = UpdateAggregator(server, model)
    changes.add("0", {n: t + 1 if t.is_floating_point() else t for n, t in model.items()})
    after = apply_update(server, model, changes.mean())
    assert all(torch.allclose(after[n], t + 0.5) for n, t in model.items() if t.is_floating_point())


def test_variances_do_not_fall_below_zero() -> None:
    server = server_of(WHOLE)
    model = initial_weights(server)
    changes = UpdateAggregator(server, model)
    changes.add("0", {n: t - 5 if t.is_floating_point() else t for n, t in model.items()})
    after = apply_update(server, model, changes.mean())
    variances = [t for n, t in after.items() if n.endswith("running_var")]
    assert variances
    assert all(t.eq(0).all() for t in variances)


# measuring


class _Everybody(FedAvg):
    """FedAvg that evaluates every client."""

    def predicts_from_published(self) -> bool:
        return False


@pytest.mark.parametrize("splitting", ["none", "width"])
def test_evaluating_one_client_per_architecture_equals_evaluating_all(splitting: str) -> None:
    with ToyFederation(FedAvg, {}) as toy:
        models = ["tiny-resnet"] if splitting == "none" else [SMALL, WHOLE]
        config = toy.config(CLASS_COUNTS, models={"group": models}, splitting=splitting)
        one = toy.run(config, evaluate=True)
        all_of_them = toy.run(config, method=_Everybody(), evaluate=True)
    assert one.accuracy == all_of_them.accuracy
    assert len(one.accuracy["global"]) == len(CLASS_COUNTS)
    assert one.hash == all_of_them.hash


def test_artifacts_are_written_to_the_run_folder(tmp_path: Any) -> None:
    from safetensors.torch import load_file

    from polyfed.core import Cohort, register

    @register("keeps-something")
    @dataclasses.dataclass(frozen=True)
    class Keeps(FedAvg):
        def round(self, server: Server, cohort: Cohort) -> None:
            super().round(server, cohort)
            server.save_artifact("numbers", vectors=torch.full((2, 3), float(server.round)))

    with ToyFederation(Keeps, {}) as toy:
        folder = tmp_path / "run"
        toy.experiment(toy.settings(CLASS_COUNTS[:2]), folder)
    found: list[Tensor] = [
        load_file(path)["vectors"] for path in sorted((folder / "artifacts").glob("numbers-*.safetensors"))
    ]
    assert [float(t[0, 0]) for t in found] == [1.0, 2.0]
