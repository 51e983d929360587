"""Where sub-models lie in a big model: index maps by hand, and outputs against the big model restricted to them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from polyfed.errors import InputError
from polyfed.models import ModelSpec, SplitModel, build, group
from polyfed.models.resnet import ResidualBlock
from polyfed.models.slicing import (
    Cut,
    Index,
    OwnerMean,
    Rule,
    block_names,
    coverage,
    cut,
    cut_specs,
    drawn,
    extract,
    prefix,
    skeleton,
    window,
)
from polyfed.models.vit import Attention

SHAPE = (1, 8, 8)


def rule_for(number: int) -> Rule:
    """The three rules in turn; the number is also the round of a window and the seed of a draw."""
    return (prefix, window(number), drawn(torch.Generator().manual_seed(number)))[number % 3]


def listed(kept: Tensor | None) -> list[int] | None:
    return None if kept is None else kept.tolist()


def randomised(model: SplitModel, seed: int) -> SplitModel:
    """In double precision and evaluation mode, with norms and biases that are not at their neutral start."""
    generator = torch.Generator().manual_seed(seed)
    model.double().eval()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if tensor.ndim < 2 and tensor.is_floating_point():
                noise = torch.rand(tensor.shape, generator=generator, dtype=torch.float64)
                tensor.copy_(noise + 0.5 if name.endswith(("running_var", "norm.weight")) else noise - 0.5)
            elif tensor.ndim >= 2:
                # Activations that neither die out nor explode, whatever the depth.
                fan = tensor[0].numel()
                tensor.copy_(torch.randn(tensor.shape, generator=generator, dtype=torch.float64) / fan**0.5)
    return model


def restricted(big: SplitModel, places: Cut) -> dict[str, Tensor]:
    """The big model's weights with everything outside of the slice set to zero."""
    zeros = {name: torch.zeros_like(tensor) for name, tensor in big.state_dict().items()}
    owners = OwnerMean(zeros)
    owners.add(extract(big.state_dict(), places), places)
    return owners.mean(zeros)


def images(shape: tuple[int, int, int]) -> Tensor:
    return torch.rand(2, *shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def without_layer_norm(model: nn.Module) -> None:
    """A layer norm looks at all channels at once, so that it tells a narrow model from a masked one."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.LayerNorm):
                setattr(parent, name, nn.Identity())


@pytest.mark.parametrize("number", [0, 4, 5])
@pytest.mark.parametrize(
    ("name", "shape", "norm", "width"),
    [
        ("cnn4", (3, 24, 24), "none", 1),
        ("cnn-fedfree", (1, 20, 24), "none", 1),
        ("tiny-cnn", SHAPE, "none", 1),
        ("tiny-mlp", SHAPE, "none", 1),
        ("tiny-mobile", SHAPE, "none", 1),
        ("tiny-mobile", SHAPE, "batch", 1),
        ("tiny-resnet", SHAPE, "none", 1),
        ("tiny-resnet-wide", SHAPE, "none", 1),
        ("tiny-resnet-wide", SHAPE, "batch", 1),
        ("tiny-resnet26", SHAPE, "batch", 1),
        ("resnet50", SHAPE, "batch", 0.25),
        ("googlenet", (3, 16, 16), "none", 0.25),
        ("mobilenet-v2", SHAPE, "batch", 0.25),
        ("mobilenet-v3-small", SHAPE, "none", 0.25),
        ("efficientnet-v2-s", SHAPE, "batch", 0.25),
    ],
)
def test_narrow_model_answers_like_the_big_one_without_its_other_channels(
    name: str, shape: tuple[int, int, int], norm: str, width: float, number: int
) -> None:
    """T3, for the leading slice, the window and the draw."""
    big = randomised(build(ModelSpec(name, norm=norm, width=width), shape=shape, classes=5), 1)
    small = build(ModelSpec(name, norm=norm, width=0.4 * width), shape=shape, classes=5).double().eval()
    places = cut(big, small, rule_for(number))
    small.load_state_dict(extract(big.state_dict(), places))
    big_answer = big(images(shape)).detach()
    big.load_state_dict(restricted(big, places))
    with torch.no_grad():
        answer = small(images(shape))
        torch.testing.assert_close(answer, big(images(shape)))
    assert answer.std() > 1e-6 and not torch.allclose(answer, big_answer)


@pytest.mark.parametrize("number", [0, 4, 5])
def test_narrow_transformer_answers_like_the_big_one_without_its_other_channels(number: int) -> None:
    big = randomised(build("tiny-vit-2", shape=SHAPE, classes=5), 1)
    small = build("tiny-vit-2@0.5", shape=SHAPE, classes=5).double().eval()
    places = cut(big, small, rule_for(number))
    small.load_state_dict(extract(big.state_dict(), places))
    big.load_state_dict(restricted(big, places))
    without_layer_norm(big)
    without_layer_norm(small)
    with torch.no_grad():
        for module in big.modules():
            if isinstance(module, Attention):
                # Scores are divided by the root of a head's width, which is 8 here and 4 in the narrow model.
                module.query.weight.mul_(2**0.5)
                module.query.bias.mul_(2**0.5)
        torch.testing.assert_close(small(images(SHAPE)), big(images(SHAPE)))


@pytest.mark.parametrize(
    ("big_name", "small_name"),
    [
        *(("tiny-resnet26", f"tiny-resnet{depth}") for depth in (10, 14, 18, 22)),
        *(("tiny-vit-6", f"tiny-vit-{depth}") for depth in (2, 3, 4, 5)),
        ("resnet34@0.25", "resnet10@0.25"),
    ],
)
def test_shallow_model_answers_like_the_big_one_that_skips_the_other_blocks(big_name: str, small_name: str) -> None:
    """Stage splitting and layer splitting, to the last bit."""
    big = randomised(build(big_name, shape=SHAPE, classes=5), 2)
    small = build(small_name, shape=SHAPE, classes=5).double().eval()
    places = cut(big, small)
    assert all(kept is None for index in places.values() for kept in index)
    small.load_state_dict(extract(big.state_dict(), places))
    kept = {name for stage in block_names(small) for name in stage}
    skipped = [name for stage in block_names(big) for name in stage if name not in kept]
    for name in skipped:
        parent, _, last = name.rpartition(".")
        setattr(big.get_submodule(parent), last, nn.Identity())
    assert skipped
    assert torch.equal(small(images(SHAPE)), big(images(SHAPE)))


def test_narrow_and_shallow_at_once() -> None:
    big = skeleton("tiny-resnet26", shape=SHAPE, classes=5)
    places = cut(big, skeleton("tiny-resnet14@0.5", shape=SHAPE, classes=5))
    assert "backbone.trunk.stages.2.1.layers.0.conv.weight" in places
    assert "backbone.trunk.stages.0.1.layers.0.conv.weight" not in places
    # Stages of 8, 12, 16 and 20 channels: the first convolution of the second stage goes from 8 to 12.
    out, inputs, *kernel = places["backbone.trunk.stages.1.0.layers.0.conv.weight"]
    assert listed(out) == [0, 1, 2, 3, 4, 5] and listed(inputs) == [0, 1, 2, 3] and kernel == [None, None]


def test_index_map_of_a_plain_network_by_hand() -> None:
    places = cut_specs("tiny-cnn", "tiny-cnn@0.125", shape=SHAPE, classes=5, rule=window(15))
    layers = "backbone.trunk.layers"
    # 16 and 32 channels, 64 features; 2, 4 and 8 are kept from place 15 on, around the circle.
    assert [listed(kept) for kept in places[f"{layers}.0.weight"]] == [[15, 0], None, None, None]
    assert [listed(kept) for kept in places[f"{layers}.0.bias"]] == [[15, 0]]
    assert [listed(kept) for kept in places[f"{layers}.3.weight"]] == [[15, 16, 17, 18], [15, 0], None, None]
    # Flattening leaves 2x2 pixels of each channel side by side.
    flat = [4 * channel + pixel for channel in (15, 16, 17, 18) for pixel in range(4)]
    assert [listed(kept) for kept in places[f"{layers}.7.weight"]] == [[15, 16, 17, 18, 19, 20, 21, 22], flat]
    assert [listed(kept) for kept in places["head.weight"]] == [None, [15, 16, 17, 18, 19, 20, 21, 22]]
    assert places["head.bias"] == (None,)


def test_attention_is_cut_inside_each_head() -> None:
    # 4 heads of 8 dimensions, of which 3 are kept: ceil(0.375 * 8). The mlp keeps 12 of 32.
    places = cut_specs("tiny-vit-2", "tiny-vit-2@0.375", shape=SHAPE, classes=5)
    inside = [head * 8 + dimension for head in range(4) for dimension in range(3)]
    stream = list(range(12))
    attention = "backbone.trunk.blocks.0.attention"
    for layer in ("query", "key", "value"):
        assert [listed(kept) for kept in places[f"{attention}.{layer}.weight"]] == [inside, stream]
        assert [listed(kept) for kept in places[f"{attention}.{layer}.bias"]] == [inside]
    assert [listed(kept) for kept in places[f"{attention}.out.weight"]] == [stream, inside]
    assert [listed(kept) for kept in places["backbone.trunk.positions"]] == [None, None, stream]
    assert [listed(kept) for kept in places["backbone.trunk.class_token"]] == [None, None, stream]


def test_branches_side_by_side() -> None:
    places = cut_specs("googlenet", "googlenet@0.5", shape=(3, 16, 16), classes=5)
    # The first module gives 64 + 128 + 32 + 32 channels; half of each is kept.
    joined = [*range(32), *range(64, 128), *range(192, 208), *range(224, 240)]
    assert listed(places["backbone.trunk.stages.0.1.one.conv.weight"][1]) == joined


def test_published_sizes_of_the_widths() -> None:
    """B5: ResNet26 at 1/16 to 1, three channels, ten classes."""
    big = skeleton(group("inco-width")[-1], shape=(3, 32, 32), classes=10)
    trained = {name for name, _ in big.named_parameters()}
    sizes = []
    for member in group("inco-width"):
        part = extract(big.state_dict(), cut(big, skeleton(member, shape=(3, 32, 32), classes=10)))
        sizes.append(sum(tensor.numel() for name, tensor in part.items() if name in trained))
    assert sizes == [69_822, 275_762, 1_096_026, 4_370_090, 17_452_362]


@pytest.mark.parametrize(
    "name", ["inco-stage", "inco-layer", "inco-width", "tiny-resnets", "tiny-vits", "tiny-widths"]
)
def test_every_member_of_a_splittable_group_is_a_slice_of_the_next(name: str) -> None:
    """T2: the smaller map is a subset of the larger."""
    models = [skeleton(member, shape=(3, 32, 32), classes=10) for member in group(name)]
    for smaller, larger in itertools.pairwise(models):
        inner, outer = cut(models[-1], smaller), cut(models[-1], larger)
        assert set(inner) <= set(outer)
        for tensor, index in inner.items():
            for few, many in zip(index, outer[tensor], strict=True):
                assert many is None or (few is not None and set(few.tolist()) <= set(many.tolist()))


def residual_blocks(model: SplitModel) -> Iterator[tuple[str, ResidualBlock]]:
    for name, module in model.named_modules():
        if isinstance(module, ResidualBlock):
            yield name, module


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(["tiny-resnet-wide", "tiny-resnet26", "resnet50"]), st.floats(0.1, 1), st.integers(0, 3000))
def test_residual_branches_keep_the_same_channels(name: str, width: float, number: int) -> None:
    """T6: what enters a block, or its projection, has the places of what leaves it."""
    small = skeleton(ModelSpec(name, width=width), shape=SHAPE, classes=5)
    places = cut(skeleton(name, shape=SHAPE, classes=5), small, rule_for(number))
    for block, module in residual_blocks(small):
        first = places[f"{block}.layers.0.conv.weight"]
        last = places[f"{block}.layers.{len(module.layers) - 1}.conv.weight"]
        if f"{block}.shortcut.conv.weight" in places:
            shortcut = places[f"{block}.shortcut.conv.weight"]
            assert listed(shortcut[0]) == listed(last[0]) and listed(shortcut[1]) == listed(first[1])
        else:
            assert listed(first[1]) == listed(last[0])
        assert listed(places[f"{block}.layers.0.norm.running_mean"][0]) == listed(first[0])


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 40), st.data(), st.integers(0, 10_000))
def test_window_is_cyclic_and_covers_evenly(size: int, data: st.DataObject, start: int) -> None:
    kept = data.draw(st.integers(1, size))
    times = [0] * size
    for round_number in range(start, start + size):
        positions = window(round_number)(size, kept).tolist()
        assert positions == [(round_number + step) % size for step in range(kept)]
        for position in positions:
            times[position] += 1
    assert times == [kept] * size


def test_window_covers_every_channel_of_a_network_equally() -> None:
    """B2: over K rounds every output is kept exactly m times; K is 8, 16 and 32, so 32 rounds close all circles."""
    big, small = (skeleton(f"tiny-resnet-wide@{width}", shape=SHAPE, classes=5) for width in (1, 0.375))
    like = {name: torch.zeros(tensor.shape) for name, tensor in big.state_dict().items()}
    counts = coverage(like, [(cut(big, small, window(number)), 1.0) for number in range(32)])
    for stage, (size, kept) in enumerate(((8, 3), (16, 6), (32, 12))):
        norm = counts[f"backbone.trunk.stages.{stage}.0.layers.1.norm.bias"]
        assert norm.tolist() == [32 / size * kept] * size
    assert counts["head.bias"].tolist() == [32.0] * 5


def test_draw_is_of_the_size_asked_for_ascending_and_even() -> None:
    """B6: every position is kept with probability kept / size; 400 draws of 3 out of 8 are 150 each, give or take."""
    generator = torch.Generator().manual_seed(0)
    times = torch.zeros(8)
    for _ in range(400):
        rule = drawn(generator)
        kept = rule(8, 3)
        assert kept.tolist() == sorted(set(kept.tolist())) and len(kept) == 3
        assert torch.equal(rule(8, 3), kept)
        times[kept] += 1
    assert times.sum() == 1200 and (times - 150).abs().max() < 50  # five standard deviations


@pytest.mark.parametrize(
    ("big", "small", "part"),
    [
        ("resnet10", "resnet8", "'head.weight' has shape (5, 256), the server model's has (5, 512)"),
        ("resnet50", "resnet18", "'backbone.trunk.stages.0.0.layers.0.conv' has kernel_size (3, 3)"),
        ("resnet10@0.5", "resnet10", "'backbone.trunk.stem.0.conv.weight' has shape (64, 1, 3, 3)"),
        ("resnet10", "resnet14", "'backbone.trunk.stages.2.1' (ResidualBlock) does not exist there"),
        ("resnet50", "resnet50@0.001", "'backbone.trunk.stages.0.0.shortcut' is a Identity"),
        ("mobilenet-v2", "mobilenet-v2@0.03", "has adds_input True, the server model's has False"),
        ("tiny-resnet10", "tiny-resnet", "'backbone.trunk' is a TinyResNet, the server model's is a ResNet"),
        ("tiny-resnet10", ModelSpec("tiny-resnet10", norm="none"), "only one of them has the tensor"),
        ("tiny-vit-2", ModelSpec("tiny-vit-2", head="relu-8"), "'head' is a Sequential"),
        ("shufflenet-v2-x1.5", "shufflenet-v2-x1.5@0.5", "ShuffleNetV2 shuffles its channels"),
        (
            ModelSpec("resnet10", feature_dim=512),
            ModelSpec("resnet8", feature_dim=512),
            "pool features of different widths",
        ),
        (
            ModelSpec("resnet10", feature_dim=64),
            ModelSpec("resnet10", width=0.5, feature_dim=64),
            "pool features of different widths",
        ),
        (
            ModelSpec("resnet10", norm="group"),
            ModelSpec("resnet10", norm="group", width=1 / 16),
            "keeps 4 of 64 channels, which is not divisible by its 8 groups. Use a multiple of 8",
        ),
    ],
)
def test_what_is_not_a_slice_is_refused(big: ModelSpec | str, small: ModelSpec | str, part: str) -> None:
    with pytest.raises(InputError) as caught:
        cut_specs(big, small, shape=SHAPE, classes=5)
    assert part in str(caught.value)


def test_other_strides_classes_and_inputs_are_refused() -> None:
    big = skeleton("tiny-resnet10", shape=(1, 16, 16), classes=5)
    with pytest.raises(InputError, match=r"stride \(1, 1\), the server model's has \(2, 2\)"):
        cut(big, skeleton(ModelSpec("tiny-resnet10", stem="small"), shape=(1, 16, 16), classes=5))
    with pytest.raises(InputError, match="has classes 4, the server model's has 5"):
        cut(big, skeleton("tiny-resnet10", shape=(1, 16, 16), classes=4))
    with pytest.raises(InputError, match=r"no earlier layer is cut from 3 to 1 outputs"):
        cut(skeleton("tiny-resnet10", shape=(3, 16, 16), classes=5), big)


def test_grouped_convolutions_and_packed_attention_are_refused() -> None:
    def grouped(width: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, width, 3), nn.Conv2d(width, width, 3, groups=2))

    def packed(width: int) -> nn.Module:
        return nn.Sequential(nn.Linear(3, width), nn.MultiheadAttention(width, 2))

    with pytest.raises(InputError, match=r"'1.weight' has 2 groups of channels"):
        cut(grouped(8), grouped(4))
    with pytest.raises(InputError, match=r"'1.in_proj_weight' has shape \(12, 4\)"):
        cut(packed(8), packed(4))


def test_a_module_of_ones_own_is_cut_like_the_zoo() -> None:
    def own(first: int, second: int) -> nn.Sequential:
        # Flattened in passing, so that only the lengths tell: 6 pixels for each of `second` channels.
        return nn.Sequential(
            nn.Conv2d(1, first, 3), nn.BatchNorm2d(first), nn.Conv2d(first, second, 1), nn.Linear(6 * second, 7)
        )

    places: dict[str, Index] = cut(own(4, 5), own(2, 3), window(3))
    assert [listed(kept) for kept in places["0.weight"]] == [[3, 0], None, None, None]
    assert [listed(kept) for kept in places["1.running_var"]] == [[3, 0]]
    assert places["1.num_batches_tracked"] == ()
    assert [listed(kept) for kept in places["2.weight"]] == [[3, 4, 0], [3, 0], None, None]
    assert listed(places["3.weight"][1]) == [*range(18, 30), *range(6)]
    assert list(places) == list(own(2, 3).state_dict())
