"""InclusiveFL: shared and own layers of types, and momentum from larger to smaller types."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.methods.sub_models import replies, server_of, sizes
from torch import Tensor

from polyfed.core.filter import Update
from polyfed.core.payload import Payload
from polyfed.errors import InputError
from polyfed.methods.inclusivefl import InclusiveFL
from polyfed.testing.engine_wrappers import RecordingEngine
from polyfed.testing.toy_federation import CLASS_COUNTS, ToyFederation

# Blocks by stage: (1, 1, 2, 2), (2, 2, 2, 2) and (2, 2, 3, 3).
SMALL, MIDDLE, LARGE = "tiny-resnet14", "tiny-resnet18", "tiny-resnet22"
N = [sum(share) for share in CLASS_COUNTS]
CONV, SECOND = "layers.0.conv.weight", "layers.1.conv.weight"


def block(stage: int, number: int, tensor: str = SECOND) -> str:
    return f"backbone.trunk.stages.{stage}.{number}.{tensor}"


class Played:
    """One round of two clients of different types: the initial model, their uploads, and the new model."""

    def __init__(self, group: list[str], rounds: int = 1, **fields: Any) -> None:
        fields = {"momentum": "same-round", "weights": "samples", **fields}
        with ToyFederation(InclusiveFL, fields) as toy:
            models = {"group": group}
            recorder = RecordingEngine()
            outcome = toy.run(toy.config(CLASS_COUNTS[:2], models=models, rounds=rounds), wrap=recorder).checked()
            self.server = server_of(toy, models=models)
        self.before = self.server.memory.weights("model")
        self.server.state = outcome.server
        self.method = InclusiveFL(**fields)
        self.trained = {k: received.weights("model") for k, received in replies(recorder, "train").items()}
        self.after = {k: Payload(m).weights("model") for k, m in self.method.publish(self.server).each.items()}

    def made(self, client: str, name: str) -> Tensor:
        """The change that a client sent."""
        return self.trained[client][name].double() - self.before[name].double()

    def moved(self, client: str, name: str) -> Tensor:
        """The change of the model of a client's type."""
        return self.after[client][name].double() - self.before[name].double()


def same(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_without_momentum_layers_are_averaged_and_tops_are_private() -> None:
    actual = Played([SMALL, LARGE], beta=0.0, allow_degenerate=True)
    n = N[0] + N[1]
    for name in (
        "backbone.trunk.stem.0.conv.weight",
        block(2, 0),
        block(0, 0),
    ):  # the only block of a stage is shared
        mean = (N[0] * actual.made("0", name) + N[1] * actual.made("1", name)) / n
        for k in "01":
            same(actual.moved(k, name), mean)
    for name in (block(2, 1), block(3, 1), "head.weight"):  # tops of the smaller, where the larger goes on
        if name != "head.weight":
            same(actual.moved("1", name), actual.made("1", name))  # shared by both types, for one of them as its top
        same(actual.moved("0", name), actual.made("0", name))
    same(actual.moved("1", "head.weight"), actual.made("1", "head.weight"))


def test_with_beta_1_a_top_moves_by_the_mean_of_the_larger_types_blocks() -> None:
    # Stage 2: the smaller type's top is block 1, the larger has blocks 1 and 2 there.
    actual = Played([SMALL, LARGE], beta=1.0)
    for stage in (2, 3):
        for tensor in (CONV, SECOND, "layers.0.norm.weight"):
            mean = (actual.made("1", block(stage, 1, tensor)) + actual.made("1", block(stage, 2, tensor))) / 2
            same(actual.moved("0", block(stage, 1, tensor)), mean)
    same(actual.moved("0", "head.weight"), actual.made("0", "head.weight"))
    statistic = block(2, 1, "layers.0.norm.running_mean")
    same(actual.moved("0", statistic), actual.made("0", statistic))  # statistics get no momentum


def test_momentum_is_weighted_by_beta() -> None:
    actual = Played([SMALL, LARGE])  # beta = 0.2
    name = block(3, 1)
    m = (actual.made("1", name) + actual.made("1", block(3, 2))) / 2
    same(actual.moved("0", name), 0.8 * actual.made("0", name) + 0.2 * m)


def test_momentum_of_the_previous_round() -> None:
    # In round 1 there is none. It is stored: the mean update of the larger type's blocks 1 and 2.
    actual = Played([SMALL, LARGE], beta=0.2, momentum="previous-round")
    name = block(3, 1)
    same(actual.moved("0", name), actual.made("0", name))
    stored = actual.server.memory.weights("momentum")
    m = (actual.made("1", name) + actual.made("1", block(3, 2))) / 2
    same(stored[f"0.{name}"].double(), m)
    # In the next round it is mixed in: 0.8 * 2 + 0.2 * 1, and nowhere else.
    merged = Update({"top": torch.tensor([2.0]), "stem": torch.tensor([3.0])}, {})
    guided = InclusiveFL(beta=0.2).guided({"top": torch.tensor([1.0]), "absent": torch.tensor([1.0])}, merged).change
    assert {n: pytest.approx(t.item()) for n, t in guided.items()} == {"top": 1.8, "stem": 3.0}


def test_equal_numbers_of_blocks_give_no_momentum() -> None:
    # Stages 2 and 3 have two blocks in both types; in stages 0 and 1 the smaller's only block is shared.
    actual = Played([SMALL, MIDDLE], beta=1.0)
    for stage in (2, 3):
        for k in "01":
            same(actual.moved(k, block(stage, 1)), actual.made(k, block(stage, 1)))


def test_tops_can_be_private_or_shared_everywhere() -> None:
    private = Played([SMALL, LARGE], beta=1.0, private_top=True)
    # Block 0 of stage 1: its second convolution has partners in blocks 0 and 1 of the larger type; its first one and
    # its shortcut have another shape than block 1's, or none there, and move by themselves.
    name = block(1, 0)
    same(private.moved("0", name), (private.made("1", name) + private.made("1", block(1, 1))) / 2)
    for tensor in (CONV, "shortcut.conv.weight"):
        same(private.moved("0", block(1, 0, tensor)), private.made("0", block(1, 0, tensor)))
    shared = Played([SMALL, LARGE], private_top=False, share_head=True)
    for name in (block(1, 0), block(2, 1), "head.weight"):
        mean = (N[0] * shared.made("0", name) + N[1] * shared.made("1", name)) / (N[0] + N[1])
        same(shared.moved("0", name), mean)
        assert torch.equal(shared.after["0"][name], shared.after["1"][name])


def test_shared_layers_are_bit_identical_in_all_types() -> None:
    for rounds in (1, 2):
        actual = Played([SMALL, LARGE], rounds=rounds)
        tops = tuple(f"backbone.trunk.stages.{stage}.1." for stage in (2, 3))
        shared = [name for name in actual.after["0"] if not name.startswith((*tops, "head."))]
        assert block(2, 0) in shared and "backbone.trunk.stem.0.norm.running_mean" in shared
        assert all(torch.equal(actual.after["0"][name], actual.after["1"][name]) for name in shared)
        assert not torch.equal(actual.after["0"]["head.weight"], actual.after["1"]["head.weight"])


def test_an_absent_type_keeps_its_layers_and_gives_no_momentum() -> None:
    with ToyFederation(InclusiveFL, {"beta": 1.0}) as toy:
        models = {"group": [SMALL, LARGE]}
        recorder = RecordingEngine()
        config = toy.config(models=models, rounds=1)
        outcome = toy.run(config, wrap=recorder, selected=lambda number: ("0",)).checked()
        server = server_of(toy, models=models)
    before = server.memory.weights("model")
    server.state = outcome.server
    trained = replies(recorder, "train")["0"].weights("model")
    small, large = (Payload(InclusiveFL().publish(server).each[k]).weights("model") for k in "01")
    assert all(torch.equal(small[name], trained[name]) for name in trained)  # the mean over one type is its own
    for name in ("head.weight", block(2, 2), block(2, 1)):
        assert torch.equal(large[name], before[name])
    assert torch.equal(large[block(2, 0)], trained[block(2, 0)])


def test_the_model_of_the_type_is_sent_each_way() -> None:
    with ToyFederation(InclusiveFL, {}) as toy:
        round_stats = toy.run().checked().round_stats
    total = 0
    for spec, clients, norms in (("tiny-resnet10", 3, 12), ("tiny-resnet18", 2, 20)):
        theta, statistics = sizes(spec)
        total += clients * (4 * (theta + statistics) + 8 * norms)
    for stats in round_stats:
        assert stats.up == {"model": total, "samples": 0} and stats.down == {"model": total}


@pytest.mark.parametrize(
    ("fields", "message"), [({"beta": 0.0}, "switches InclusiveFL off"), ({"beta": 1.5}, "at most 1")]
)
def test_wrong_options_raise(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        InclusiveFL(**fields)


def test_slices_by_width_raise() -> None:
    with (
        ToyFederation(InclusiveFL, {}) as toy,
        pytest.raises(InputError, match=r"tiny-resnet10@0.5 is narrower than"),
    ):
        toy.experiment(toy.settings(models={"group": ["tiny-resnet10@0.5", "tiny-resnet10"]}))
