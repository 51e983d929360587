"""Models with early exits: what they answer, and that shallower ones are slices of deeper ones."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import nn

from polyfed.errors import InputError
from polyfed.models import ModelSpec, build
from polyfed.models.slicing import (
    EarlyExits,
    OwnerMean,
    block_names,
    build_with_exits,
    classifier_tensors,
    cut,
    extract,
    prefix,
    window,
)

SHAPE = (1, 8, 8)
IMAGES = torch.rand(3, *SHAPE, generator=torch.Generator().manual_seed(1))


def exits(spec: ModelSpec | str, depths: Sequence[int]) -> EarlyExits:
    return build_with_exits(spec, depths, shape=SHAPE, classes=5).eval()


@pytest.mark.parametrize(
    ("name", "depths"),
    [("tiny-resnet26", (3, 6, 9, 12)), ("tiny-vit-4", (1, 2, 4)), ("mobilenet-v2@0.25", (2, 5, 17))],
)
def test_deepest_exit_is_the_model_itself(name: str, depths: tuple[int, ...]) -> None:
    model = exits(name, depths)
    plain = build(name, shape=SHAPE, classes=5).eval()
    inner = {
        key: tensor for key, tensor in model.state_dict().items() if not key.startswith(("backbone.necks", "head"))
    }
    own_head = {f"head.{key}": tensor for key, tensor in model.head[str(depths[-1])].state_dict().items()}
    plain.load_state_dict(inner | own_head)
    answers = model.logits(IMAGES)
    assert len(answers) == len(depths) == len(model.depths) and all(a.shape == (3, 5) for a in answers)
    assert torch.equal(answers[-1], plain(IMAGES)) and torch.equal(model(IMAGES), plain(IMAGES))
    assert model.feature_dim == plain.feature_dim == model.features(IMAGES).shape[1]


@pytest.mark.parametrize(("name", "depths"), [("tiny-resnet26", (3, 6, 9, 12)), ("tiny-vit-4", (1, 2, 4))])
def test_shallower_levels_answer_like_the_first_exits_of_the_server(name: str, depths: tuple[int, ...]) -> None:
    server = exits(name, depths)
    answers = server.logits(IMAGES)
    for level in range(1, len(depths) + 1):
        small = exits(name, depths[:level])
        small.load_state_dict(extract(server.state_dict(), cut(server, small)))
        for own, wanted in zip(small.logits(IMAGES), answers[:level], strict=True):
            assert torch.equal(own, wanted)
        assert torch.equal(small(IMAGES), answers[level - 1])
        assert small.features(IMAGES).shape == (3, small.feature_dim)


@pytest.mark.parametrize("offset", [0, 5])
def test_narrow_and_shallow_level_answers_like_the_server_without_the_rest(offset: int) -> None:
    """ScaleFL's slice: the first exits at a smaller width; the server with all else at zero says the same there."""
    server = exits("tiny-resnet-wide", (2, 4, 6))
    small = exits("tiny-resnet-wide@0.375", (2, 4))
    places = cut(server, small, window(offset) if offset else prefix)
    small.load_state_dict(extract(server.state_dict(), places))
    zeros = {name: torch.zeros_like(tensor) for name, tensor in server.state_dict().items()}
    owners = OwnerMean(zeros)
    owners.add(small.state_dict(), places)
    server.load_state_dict(owners.mean(zeros))
    for own, masked in zip(small.logits(IMAGES), server.logits(IMAGES)[:2], strict=True):
        torch.testing.assert_close(own, masked)


def test_deeper_exits_are_untouched_by_a_shallow_update() -> None:
    """B4 (3), to the last bit."""
    server, small = exits("tiny-resnet26", (3, 6, 12)), exits("tiny-resnet26@0.5", (3, 6))
    old = {name: tensor.clone() for name, tensor in server.state_dict().items()}
    places = cut(server, small)
    owners = OwnerMean(old)
    owners.add({name: tensor + 1 for name, tensor in extract(old, places).items()}, places)
    merged = owners.result(old)
    deeper = [
        name for name in old if name.startswith(("head.12", "backbone.trunk.stages.2", "backbone.trunk.stages.3"))
    ]
    assert deeper and not any(name in places for name in deeper)
    assert all(torch.equal(merged[name], old[name]) for name in deeper)
    assert not torch.equal(merged["head.6.bias"], old["head.6.bias"])


def test_every_exit_trains_what_lies_before_it() -> None:
    model = build_with_exits("tiny-resnet26", (6, 12), shape=SHAPE, classes=5).train()
    early, _ = model.logits(IMAGES)
    torch.autograd.backward(early.sum())
    reached = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    before = {
        name
        for name, _ in model.named_parameters()
        if name.startswith(
            (
                "head.6.",
                "backbone.necks.6.",
                "backbone.trunk.stem",
                "backbone.trunk.stages.0",
                "backbone.trunk.stages.1",
            )
        )
    }
    assert reached == before


def test_exit_heads_by_hand() -> None:
    """Three convolutions of the 8 channels there, each with its norm, then a linear layer to 5 classes."""
    model = exits("tiny-resnet26", (3, 12))
    neck = sum(parameter.numel() for parameter in model.backbone.necks["3"].parameters())
    assert neck == 3 * (8 * 8 * 9 + 2 * 8)
    layer = model.head["3"]
    assert isinstance(layer, nn.Linear) and layer.weight.shape == (5, 8)
    assert classifier_tensors(model) == ("head.3.weight", "head.3.bias", "head.12.weight", "head.12.bias")
    assert [len(stage) for stage in block_names(model)] == [3, 3, 3, 3]
    assert [len(stage) for stage in block_names(exits("tiny-resnet26", (2, 4)))] == [3, 1]


@pytest.mark.parametrize("depths", [(), (0, 3), (3, 3), (6, 3), (3, 13)])
def test_impossible_depths_are_refused(depths: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"exits are asked for after blocks .* ascending numbers from 1 to 12"):
        exits("tiny-resnet26", depths)


def test_models_without_blocks_are_refused() -> None:
    with pytest.raises(InputError, match="trunk TinyMLP has no blocks to exit after"):
        exits("tiny-mlp", (1,))
    with pytest.raises(InputError, match="trunk TinyMLP has no stages or blocks"):
        block_names(build("tiny-mlp", shape=SHAPE, classes=5))


def test_a_model_without_exits_is_no_slice_of_one_with() -> None:
    server = exits("tiny-resnet26", (3, 12))
    with pytest.raises(InputError, match="'model' is a SplitModel, the server model's is a EarlyExits"):
        cut(server, build("tiny-resnet10", shape=SHAPE, classes=5))
    with pytest.raises(InputError, match=r"'backbone.necks.4' \(Sequential\) does not exist there"):
        cut(server, exits("tiny-resnet26", (4, 12)))
