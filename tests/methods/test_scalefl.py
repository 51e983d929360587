"""ScaleFL: the losses of the exits, and layers beyond the last exit of a level."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.methods.sub_models import server_of, sizes

from polyfed.errors import InputError
from polyfed.methods.scalefl import ScaleFL
from polyfed.testing.toy_federation import CLASS_COUNTS, ToyFederation

LEVELS = ("tiny-resnet-wide@0.5:2", "tiny-resnet-wide:2-4-6")


def outputs(*rows: list[float]) -> list[torch.Tensor]:
    return [torch.tensor([row], requires_grad=True) for row in rows]


def terms(method: ScaleFL, exits: list[torch.Tensor], distils: bool = True) -> tuple[torch.Tensor, ...]:
    actual = method.exit_losses(exits, torch.tensor([0]), distils)
    return actual if isinstance(actual, tuple) else (actual,)


@pytest.mark.parametrize("exits", [1, 2, 4])
def test_weights_of_the_exits_sum_to_1(exits: int) -> None:
    method = ScaleFL(gamma=0.0, allow_degenerate=True)
    same = outputs(*[[1.0, 0.0, -1.0]] * exits)
    expected = F.cross_entropy(same[0], torch.tensor([0]))
    torch.testing.assert_close(torch.stack(terms(method, same)).sum(), expected)


def test_the_loss_by_hand() -> None:
    # Two exits on two classes, T = 1, gamma = 0.5. o_1 = (0, 0): CE ln 2. o_2 = (ln 3, 0), so (3/4, 1/4): CE ln(4/3).
    # KL(o_2 || o_1) = 3/4 ln(3/2) + 1/4 ln(1/2). L = [1 (ln 2 + 0.5 KL) + 2 ln(4/3)] / 3.
    method = ScaleFL(gamma=0.5, temperature=1.0)
    task, apart = terms(method, outputs([0.0, 0.0], [math.log(3), 0.0]))
    kl = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert task.item() == pytest.approx((math.log(2) + 2 * math.log(4 / 3)) / 3, rel=1e-6)
    assert apart.item() == pytest.approx(0.5 * kl / 3, rel=1e-5)
    halved = ScaleFL(gamma=0.5, temperature=1.0, kl_reduction="mean")
    assert terms(halved, outputs([0.0, 0.0], [math.log(3), 0.0]))[1].item() == pytest.approx(0.25 * kl / 3, rel=1e-5)


def test_the_last_exit_is_detached_as_teacher() -> None:
    exits = outputs([0.3, -0.2], [0.1, 0.4], [1.0, -1.0])
    _, apart = terms(ScaleFL(), exits)
    apart.backward()  # type: ignore[no-untyped-call]
    assert exits[-1].grad is None
    assert all(early.grad is not None and bool(early.grad.any()) for early in exits[:-1])


def test_the_divergence_counts_after_the_first_quarter() -> None:
    # Rounds count from 0, as released: of 8, round 2 is the first quarter, and distillation starts after it.
    digests = []
    with ToyFederation(ScaleFL, {}) as toy:
        for gamma in (0.05, 5.0):
            method = ScaleFL(gamma=gamma, statistics="finish", distil_from=0.5)
            config = toy.config(CLASS_COUNTS[:2], rounds=4)
            outcome = toy.run(config, method=method, selected=lambda number: ("1",)).checked()
            digests.append([after["1"] for after in outcome.after_rounds])
        server = server_of(toy, rounds=8)
        recorded = []
        for server.round in range(1, 9):
            recorded.append(ScaleFL().announcement(server)["distils"])
    one, other = digests
    assert one[:3] == other[:3] and one[3] != other[3]  # of 4 rounds, half are rounds 0 to 2
    assert recorded == [False, False, False, True, True, True, True, True]


def test_layers_beyond_a_level_do_not_change() -> None:
    with ToyFederation(ScaleFL, {}) as toy:
        before = server_of(toy).memory.weights("model")
        outcome = toy.run(toy.config(rounds=1), selected=lambda number: ("0",)).checked()
    after: Any = outcome.server["model"]
    beyond = [name for name in before if name.startswith(("backbone.trunk.stages.1", "backbone.trunk.stages.2"))]
    beyond += [name for name in before if name.startswith(("backbone.necks.4", "head.4", "head.6"))]
    assert len(beyond) > 20 and all(torch.equal(after[name], before[name]) for name in beyond)
    neck, head = "backbone.necks.2.0.conv.weight", "head.2.weight"
    assert torch.equal(after[neck][4:], before[neck][4:]) and torch.equal(after[head][:, 4:], before[head][:, 4:])
    assert not torch.equal(after[neck][:4, :4], before[neck][:4, :4])
    assert not torch.equal(after[head][:, :4], before[head][:, :4])


def test_a_slice_with_its_exits_is_sent_each_way() -> None:
    (small, _), (large, _) = (sizes(spec) for spec in LEVELS)
    with ToyFederation(ScaleFL, {"bn": "batch"}) as toy:
        round_stats = toy.run().checked().round_stats
    for stats in round_stats:
        assert stats.up == {"model": 4 * (3 * small + 2 * large), "samples": 0}
        assert stats.down == {"model": 4 * (3 * small + 2 * large), "rate": 0, "distils": 0}


def test_absent_classes_can_be_masked_at_every_exit() -> None:
    # Clients 0 and 1 have classes {0, 1} and {1, 2}: no client has class 3.
    with ToyFederation(ScaleFL, {"mask_absent_classes": True}) as toy:
        before = server_of(toy).memory.weights("model")
        outcome = toy.run(toy.config(CLASS_COUNTS[:2], rounds=1)).checked()
    after: Any = outcome.server["model"]
    for head in ("head.2.weight", "head.4.weight", "head.6.bias"):
        assert torch.equal(after[head][3], before[head][3]) and not torch.equal(after[head][1], before[head][1])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"gamma": 0.0}, "switches ScaleFL off"),
        ({"temperature": 0.0}, "above 0"),
        ({"distil_from": 1.5}, "at least 0 and at most 1"),
    ],
)
def test_wrong_options_raise(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ScaleFL(**fields)


def test_models_without_exits_raise_before_anything_is_written() -> None:
    with (
        ToyFederation(ScaleFL, {}) as toy,
        pytest.raises(InputError, match="needs models with early exits, but tiny-resnet"),
    ):
        toy.experiment(toy.settings(models={"group": ["tiny-resnet@0.5", "tiny-resnet"]}))
