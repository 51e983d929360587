"""The mathematics under FedFree: entropies, changes, overlaps, the transfer on Gaussian inputs, and projections."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from polyfed.core import rng
from polyfed.methods.fedfree.layer_transfer import (
    Gathered,
    averaged,
    block,
    overlap,
    probe_shape,
    projected,
    shape_match,
    transferred,
    trimmed,
)
from polyfed.methods.fedfree.layers import KINDS, Layer, layers_of, most_changed, weight_entropy, with_change
from polyfed.models import build
from polyfed.training.batchnorm import recalibrate
from polyfed.training.samples import Samples

quick = settings(max_examples=25, deadline=None)
whole_numbers = st.lists(st.integers(-1000, 1000), min_size=1, max_size=400)


def drawn(name: str, *shape: int) -> Tensor:
    return torch.randn(shape, generator=rng.generator("test", name))


def layer(kind: str, *shape: int, seed: str = "", bias: bool = True) -> Layer:
    held = drawn(f"bias {seed}", shape[0]) if bias else None
    return Layer(f"layer {seed}", kind, 0, 0.0, drawn(f"weight {seed}", *shape), held)


def gathered(target: Layer, *layers: Layer) -> Gathered:
    found = Gathered(target)
    for one in layers:
        found.add(one)
    return found


# entropy


@quick
@given(whole_numbers, st.sampled_from(["shannon", "collision", "tsallis"]))
def test_entropy_has_its_bounds(values: list[int], kind: str) -> None:
    most = min(256, len(values))
    bound = 1 - 1 / most if kind == "tsallis" else math.log2(most)  # q = 2: 1 - sum p^2
    found = weight_entropy(torch.tensor(values, dtype=torch.float32), kind)  # type: ignore[arg-type]
    assert -1e-12 <= found <= bound + 1e-12


@quick
@given(whole_numbers, st.integers(1, 50), st.integers(-500, 500), st.randoms(use_true_random=False))
def test_entropy_is_blind_to_scale_shift_and_order(values: list[int], c: int, d: int, shuffle: object) -> None:
    mixed = list(values)
    shuffle.shuffle(mixed)  # type: ignore[attr-defined]
    moved = torch.tensor([c * v + d for v in mixed], dtype=torch.float64)
    assert weight_entropy(moved) == weight_entropy(torch.tensor(values, dtype=torch.float64))


@pytest.mark.parametrize("times", [1, 3])
def test_entropy_of_known_histograms(times: int) -> None:
    even = torch.arange(256.0).repeat(times)
    assert weight_entropy(even) == 8.0  # 256 bins with p = 1/256 each
    assert weight_entropy(even, "collision") == 8.0  # -log2(256 / 256^2)
    assert weight_entropy(even, "tsallis") == 1 - 1 / 256  # (1 - 256 / 256^2) / (2 - 1)
    assert weight_entropy(even, "tsallis", q=0.5) == pytest.approx(2 * (16 - 1))  # (1 - 256 / 16) / (0.5 - 1)
    assert weight_entropy(torch.tensor([0.1, 0.7]).repeat(times)) == 1.0
    assert weight_entropy(torch.full((7,), 0.3)) == 0.0
    assert weight_entropy(torch.zeros(0)) == 0.0
    # p = 3/4, 1/4: 2 - 3/4 log2 3 bits, sum p^2 = 10/16
    uneven = torch.tensor([0.0, 0, 0, 1]).repeat(times)
    assert weight_entropy(uneven) == pytest.approx(2 - 0.75 * math.log2(3))
    assert weight_entropy(uneven, "collision") == pytest.approx(-math.log2(10 / 16))
    assert weight_entropy(uneven, bins=2) == weight_entropy(uneven)


def test_entropy_leaves_its_input_alone() -> None:
    for dtype in (torch.float32, torch.float64):
        weight = torch.arange(5, dtype=dtype)
        weight_entropy(weight)
        assert weight.tolist() == [0, 1, 2, 3, 4]


def test_random_weights_have_more_entropy_than_heavy_tailed_ones() -> None:
    # Why an untrained global layer has a "gain": even weights fill their range, those with few large ones do not.
    g = rng.generator("entropy")
    uniform = torch.rand(50_000, generator=g)
    normal = torch.randn(50_000, generator=g)
    laplace = -torch.log(torch.rand(50_000, generator=g)) * torch.sign(torch.rand(50_000, generator=g) - 0.5)
    assert weight_entropy(uniform) > 7.9 > weight_entropy(normal) > 6.5 > weight_entropy(laplace)


# which layers there are, and how far they moved


def test_layers_of_a_model_by_kind_and_depth() -> None:
    model = build("tiny-mobile", shape=(1, 8, 8), classes=4)
    found = layers_of(model, ["conv", "linear"])
    assert [(one.kind, one.place, one.depth) for one in found] == [
        ("conv", 0, 0.0),
        ("conv", 1, 0.5),
        ("conv", 2, 1.0),
        ("linear", 3, 0.0),
    ]
    assert [one.name for one in found][-1] == "head"
    assert not {"depthwise"} & {one.kind for one in found}
    deep = [one for one in layers_of(model, KINDS) if one.kind == "depthwise"]
    assert [tuple(one.weight.shape) for one in deep] == [(32, 1, 3, 3), (48, 1, 3, 3)]
    assert [one.name for one in layers_of(model, ["linear"], without=model.head)] == []


def test_grouped_convolutions_norms_and_embeddings_are_no_kind() -> None:
    odd = nn.Sequential(nn.Conv2d(4, 8, 3, groups=2), nn.BatchNorm2d(8), nn.LayerNorm(8), nn.Embedding(3, 3))
    assert layers_of(odd, KINDS) == []


def test_change_is_relative_and_squared() -> None:
    # before: weight (3, 0), bias 4, squares 25. now: weight (3, 1), bias 6: moved 1 + 4. 5 / 25.
    before = Layer("a", "linear", 0, 0.0, torch.tensor([[3.0, 0.0]]), torch.tensor([4.0]))
    now = replace(before, weight=torch.tensor([[3.0, 1.0]]), bias=torch.tensor([6.0]))
    assert with_change(now, before).change == pytest.approx(0.2)
    now, before = (Layer("a", "linear", 0, 0.0, 2 * one.weight, 2 * one.tensors[1]) for one in (now, before))
    assert with_change(now, before).change == pytest.approx(0.2)


def test_change_from_nothing_and_to_nothing_finite() -> None:
    zero = Layer("a", "linear", 0, 0.0, torch.zeros(1, 2))
    assert with_change(zero, zero).change == 0
    assert with_change(replace(zero, weight=torch.ones(1, 2)), zero).change == pytest.approx(2 / 2e-12)
    for wrong in (math.nan, math.inf):
        assert with_change(replace(zero, weight=torch.tensor([[wrong, 0.0]])), zero).change == -math.inf


@quick
@given(st.lists(st.floats(0, 5), max_size=8), st.integers(0, 10))
def test_most_changed_are_k_and_the_first_of_equals(changes: list[float], k: int) -> None:
    all_layers = [Layer(str(i), "linear", i, 0.0, torch.ones(1, 1), change=c) for i, c in enumerate(changes)]
    chosen = most_changed(all_layers, k)
    assert len(chosen) == min(k, len(changes))
    for one in chosen:
        for other in all_layers:
            assert other in chosen or (one.change, -one.place) > (other.change, -other.place)


# Eq. 3 to 5


def literal_loss(target: Layer, layers: Sequence[Layer], x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Eq. 3 as it is written, for layers of the target's shape: the mean over layers of |g X - theta X|^2."""

    def outputs(w: Tensor, b: Tensor | None) -> Tensor:
        if target.kind == "linear":
            return F.linear(x, w, b)
        return F.conv2d(x, w, b, groups=len(w) if target.kind == "depthwise" else 1).flatten(2).mT

    gaps = [(outputs(weight, bias) - outputs(one.weight, one.bias)).square().sum(-1).mean() for one in layers]
    return torch.stack(gaps).mean()


CASES = [("linear", (5, 7)), ("conv", (4, 3, 3, 3)), ("conv", (3, 2, 5, 1)), ("depthwise", (6, 1, 3, 3))]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("kind", "shape"), CASES)
def test_a_sampled_step_is_the_gradient_of_equation_3(kind: str, shape: tuple[int, ...], bias: bool) -> None:
    target = layer(kind, *shape, seed="g", bias=bias)
    mapped = [layer(kind, *shape, seed=str(i), bias=bias) for i in range(3)]
    x = drawn("x", *probe_shape(target, 16, 6))
    weight = target.weight.clone().requires_grad_()
    held = None if target.bias is None else target.bias.clone().requires_grad_()
    literal_loss(target, mapped, x, weight, held).backward()  # type: ignore[no-untyped-call]
    got, got_bias = transferred(gathered(target, *mapped), 0.01, 1, x)
    assert weight.grad is not None
    torch.testing.assert_close(got, target.weight - 0.01 * weight.grad)
    if target.bias is not None and held is not None and held.grad is not None:
        torch.testing.assert_close(got_bias, target.bias - 0.01 * held.grad)
    else:
        assert got_bias is None


@pytest.mark.parametrize(("kind", "shape"), CASES)
def test_sampled_converges_to_expected(kind: str, shape: tuple[int, ...]) -> None:
    """The error of the mean over n samples falls like 1 / sqrt(n): 64 times the samples, an eighth of the error."""
    target = layer(kind, *shape, seed="g")
    mapped = gathered(target, *[layer(kind, *shape, seed=str(i)) for i in range(3)])
    aim, aim_bias = transferred(mapped, 0.5)
    assert aim_bias is not None

    def error(batch: int, draws: int) -> float:
        """Root of the mean squared distance to the expected update."""
        squares = []
        for i in range(draws):
            x = drawn(f"probes {batch} {i}", *probe_shape(target, batch, 5))
            got, got_bias = transferred(mapped, 0.5, 1, x)
            assert got_bias is not None
            squares.append(float((got - aim).square().sum() + (got_bias - aim_bias).square().sum()))
        return math.sqrt(sum(squares) / draws)

    few, many = error(32, 24), error(32 * 64, 6)
    assert many < 0.1 * math.sqrt(float(aim.numel()))  # near
    assert 4 < few / many < 16  # and at the rate of a mean: 8, within a factor of two


def test_how_far_a_sampled_step_is_from_the_expected_one() -> None:
    """With D and e the differences of weights (o x d) and biases, n samples, and a step of size 1/2:

    the step is D S + e m' for the weight and D m + e for the bias, S and m the samples' second moments and mean;
    E|D (S - I)|^2 = (d + 1) |D|^2 / n, E|e m'|^2 = d |e|^2 / n, E|D m|^2 = |D|^2 / n, and the first two do not mix.
    """
    target, one, n, d = layer("linear", 5, 7, seed="g"), layer("linear", 5, 7, seed="a"), 64, 7
    found = gathered(target, one)
    assert one.bias is not None and target.bias is not None
    apart, apart_bias = (target.weight - one.weight).square().sum(), (target.bias - one.bias).square().sum()
    squares = []
    for i in range(300):
        weight, bias = transferred(found, 0.5, 1, drawn(f"probes {i}", n, d))
        assert bias is not None
        squares.append(float((weight - one.weight).square().sum() + (bias - one.bias).square().sum()))
    assert sum(squares) / 300 == pytest.approx(float((d + 2) * apart + d * apart_bias) / n, rel=0.1)


def test_expected_is_a_moving_mean() -> None:
    target, mapped = layer("conv", 3, 2, 3, 3, seed="g"), [layer("conv", 3, 2, 3, 3, seed=str(i)) for i in range(4)]
    mean = torch.stack([one.weight.double() for one in mapped]).mean(0)
    once, _ = transferred(gathered(target, *mapped), 0.01)
    torch.testing.assert_close(once, (0.98 * target.weight.double() + 0.02 * mean).float())
    thrice, _ = transferred(gathered(target, *mapped), 0.01, 3)
    torch.testing.assert_close(thrice, (0.98**3 * target.weight.double() + (1 - 0.98**3) * mean).float())


@pytest.mark.parametrize("bias", [True, False])
def test_half_a_step_size_is_the_mean_and_none_is_rest(bias: bool) -> None:
    target, mapped = layer("linear", 4, 5, bias=bias), [layer("linear", 4, 5, seed=str(i), bias=bias) for i in "ab"]
    mean = ((mapped[0].weight.double() + mapped[1].weight) / 2).float()
    weight, _ = transferred(gathered(target, *mapped), 0.5)
    assert torch.equal(weight, mean)
    assert torch.equal(averaged(gathered(target, *mapped))[0], mean)
    for probes in (None, drawn("x", 8, 5)):
        rested, rested_bias = transferred(gathered(target, *mapped), 0.0, 1, probes)
        assert torch.equal(rested, target.weight)
        assert (rested_bias is None) == (not bias)


@pytest.mark.parametrize(("kind", "shape"), CASES)
def test_equal_layers_move_nothing(kind: str, shape: tuple[int, ...]) -> None:
    target = layer(kind, *shape)
    same = gathered(target, target, target, target)
    for probes in (None, drawn("x", *probe_shape(target, 4, 6))):
        weight, bias = transferred(same, 0.3, 2, probes)
        assert bias is not None and target.bias is not None
        assert torch.equal(weight, target.weight) and torch.equal(bias, target.bias)
        assert weight_entropy(weight) - weight_entropy(target.weight) == 0.0


def test_the_order_of_layers_does_not_count() -> None:
    target = layer("linear", 4, 5, seed="g")
    mapped = [layer("linear", n, 6 - n, seed=str(n), bias=n != 2) for n in (2, 3, 5)] + [layer("linear", 4, 5)]
    results = [transferred(gathered(target, *order), 0.1)[0] for order in permutations(mapped)]
    assert all(torch.equal(results[0], other) for other in results)


def test_only_the_overlap_moves() -> None:
    # target 2 x 3 of zeros; a layer 3 x 2 of ones reaches the columns 0 and 1; a bias on one side is not compared
    target = Layer("g", "linear", 0, 0.0, torch.zeros(2, 3), torch.zeros(2))
    other = Layer("a", "linear", 0, 0.0, torch.ones(3, 2))
    weight, bias = transferred(gathered(target, other), 0.25)
    assert weight.tolist() == [[0.5, 0.5, 0.0]] * 2 and bias is not None and bias.tolist() == [0.0, 0.0]
    mean, mean_bias = averaged(gathered(target, other))
    assert mean.tolist() == [[1.0, 1.0, 0.0]] * 2 and mean_bias is not None and mean_bias.tolist() == [0.0, 0.0]


def test_kernels_meet_in_the_middle() -> None:
    target = Layer("g", "conv", 0, 0.0, torch.zeros(1, 1, 5, 5))
    other = Layer("a", "conv", 0, 0.0, torch.arange(9.0).reshape(1, 1, 3, 3))
    weight, _ = averaged(gathered(target, other))
    assert torch.equal(weight[0, 0, 1:4, 1:4], other.weight[0, 0])
    assert float(weight.abs().sum()) == float(other.weight.sum())
    back, _ = averaged(gathered(other, target))
    assert torch.equal(back, torch.zeros(1, 1, 3, 3))


def test_overlaps_of_several_shapes_share_the_step() -> None:
    # of two layers one covers the first input only: L = 1/2 (|g - a|^2 on both inputs + |g - b|^2 on the first)
    target = Layer("g", "linear", 0, 0.0, torch.zeros(1, 2))
    a, b = replace(target, weight=torch.tensor([[2.0, 4.0]])), replace(target, weight=torch.tensor([[6.0]]))
    weight, _ = transferred(gathered(target, a, b), 0.1)
    torch.testing.assert_close(weight, torch.tensor([[0.1 * (2 + 6), 0.1 * 4]]))  # 2 alpha / 2 = 0.1
    mean, _ = averaged(gathered(target, a, b))
    assert mean.tolist() == [[4.0, 4.0]]


def test_how_well_shapes_match() -> None:
    assert shape_match((4, 5), (4, 5)) == 1
    assert shape_match((2, 3), (4, 1)) == pytest.approx(2 / (6 + 4 - 2))


# Eq. 7

shapes = st.lists(st.integers(1, 4), min_size=4, max_size=4)


@quick
@given(shapes, shapes, st.sampled_from(["flat", "block"]), st.sampled_from(["retain", "zero"]))
def test_projections(a: list[int], b: list[int], how: str, rest: str) -> None:
    own, received = drawn("own", *a), drawn("received", *b)
    got = projected(own, received, how, rest)  # type: ignore[arg-type]
    assert got.shape == own.shape
    assert torch.equal(projected(got, received, how, rest), got)  # type: ignore[arg-type]
    small = trimmed(received, own.shape, how)  # type: ignore[arg-type]
    assert torch.equal(projected(own, small, how, rest), got)  # type: ignore[arg-type]
    assert torch.equal(projected(own, own, how, rest), own)  # type: ignore[arg-type]
    # and back: what came from `received` is still there
    again = projected(received, got, how, "retain")  # type: ignore[arg-type]
    assert torch.equal(again, received)
    untouched = torch.ones_like(own, dtype=torch.bool)
    if how == "flat":
        size = min(own.numel(), received.numel())
        assert torch.equal(got.flatten()[:size], received.flatten()[:size])
        assert small.numel() == size
        untouched.view(-1)[:size] = False
    else:
        common = overlap(a, b)
        assert torch.equal(block(got, common), block(received, common))
        assert tuple(small.shape) == common
        block(untouched, common).fill_(False)
    expected = own if rest == "retain" else torch.zeros_like(own)
    assert torch.equal(got[untouched], expected[untouched])


def test_flat_order_is_row_major_whatever_the_memory() -> None:
    own = drawn("own", 2, 3, 2, 2).to(memory_format=torch.channels_last)
    received = torch.arange(30.0)
    assert projected(own, received).flatten().tolist() == list(range(24))


# BatchNorm


def test_recalibrated_statistics_are_those_of_the_data() -> None:
    images = torch.randint(0, 256, (8, 2, 3, 3), generator=rng.generator("images")).to(torch.uint8)
    samples = Samples(images, torch.zeros(8, dtype=torch.int64))
    norm = nn.BatchNorm2d(2)
    norm(drawn("before", 4, 2, 3, 3))
    recalibrate(nn.Sequential(norm), samples, 8)
    pixels = images.double() / 255
    assert norm.running_mean is not None and norm.running_var is not None and norm.momentum == 0.1
    torch.testing.assert_close(norm.running_mean.double(), pixels.mean((0, 2, 3)), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(norm.running_var.double(), pixels.var((0, 2, 3)), rtol=1e-5, atol=1e-6)
    kept = norm.running_mean.clone()
    recalibrate(nn.Sequential(norm), samples.subset(torch.tensor([0])), 8)
    assert torch.equal(norm.running_mean, kept)  # one sample says nothing about a spread
