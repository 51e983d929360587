"""FedFree: transfer of client layers into global layers (Eq. 3 to 5), and projection into client layers (Eq. 7)."""

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
from torch import Tensor

from polyfed.core import rng
from polyfed.methods.fedfree.entropy import weight_entropy
from polyfed.methods.fedfree.layer_transfer import MappedLayers, average, distil, pseudo_data_shape
from polyfed.methods.fedfree.layers import Layer
from polyfed.methods.fedfree.overlap import crop, overlap_shape
from polyfed.methods.fedfree.projection import project, trim

quick = settings(max_examples=25, deadline=None)


def normal(name: str, *shape: int) -> Tensor:
    return torch.randn(shape, generator=rng.generator("test", name))


def random_layer(kind: str, *shape: int, seed: str = "", bias: bool = True) -> Layer:
    values = normal(f"bias {seed}", shape[0]) if bias else None
    return Layer(f"layer {seed}", kind, 0, 0.0, normal(f"weight {seed}", *shape), values)


def mapped_to(target: Layer, *layers: Layer) -> MappedLayers:
    mapped = MappedLayers(target)
    for layer in layers:
        mapped.add(layer)
    return mapped


# Eq. 3 to 5


def literal_loss(target: Layer, layers: Sequence[Layer], x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute Eq. 3 literally, for layers of the target's shape: the mean over layers of |g X - theta X|^2."""

    def outputs(w: Tensor, b: Tensor | None) -> Tensor:
        if target.kind == "linear":
            return F.linear(x, w, b)
        return F.conv2d(x, w, b, groups=len(w) if target.kind == "depthwise" else 1).flatten(2).mT

    losses = [(outputs(weight, bias) - outputs(layer.weight, layer.bias)).square().sum(-1).mean() for layer in layers]
    return torch.stack(losses).mean()


CASES = [("linear", (5, 7)), ("conv", (4, 3, 3, 3)), ("conv", (3, 2, 5, 1)), ("depthwise", (6, 1, 3, 3))]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("kind", "shape"), CASES)
def test_a_sampled_step_is_the_gradient_of_equation_3(kind: str, shape: tuple[int, ...], bias: bool) -> None:
    target = random_layer(kind, *shape, seed="g", bias=bias)
    mapped = [random_layer(kind, *shape, seed=str(i), bias=bias) for i in range(3)]
    x = normal("x", *pseudo_data_shape(target, 16, 6))
    weight = target.weight.clone().requires_grad_()
    offset = None if target.bias is None else target.bias.clone().requires_grad_()
    literal_loss(target, mapped, x, weight, offset).backward()  # type: ignore[no-untyped-call]
    updated, updated_bias = distil(mapped_to(target, *mapped), 0.01, 1, x)
    assert weight.grad is not None
    torch.testing.assert_close(updated, target.weight - 0.01 * weight.grad)
    if target.bias is not None and offset is not None and offset.grad is not None:
        torch.testing.assert_close(updated_bias, target.bias - 0.01 * offset.grad)
    else:
        assert updated_bias is None


@pytest.mark.parametrize(("kind", "shape"), CASES)
def test_the_sampled_step_converges_to_the_expected_one(kind: str, shape: tuple[int, ...]) -> None:
    """The error falls like 1 / sqrt(n) with n samples: 64 times the samples have an eighth of the error."""
    target = random_layer(kind, *shape, seed="g")
    mapped = mapped_to(target, *[random_layer(kind, *shape, seed=str(i)) for i in range(3)])
    expected, expected_bias = distil(mapped, 0.5)
    assert expected_bias is not None

    def error(batch: int, draws: int) -> float:
        """Return the root mean squared distance to the expected step."""
        squares = []
        for i in range(draws):
            x = normal(f"probes {batch} {i}", *pseudo_data_shape(target, batch, 5))
            weight, bias = distil(mapped, 0.5, 1, x)
            assert bias is not None
            squares.append(float((weight - expected).square().sum() + (bias - expected_bias).square().sum()))
        return math.sqrt(sum(squares) / draws)

    few, many = error(32, 24), error(32 * 64, 6)
    assert many < 0.1 * math.sqrt(float(expected.numel()))
    assert 4 < few / many < 16  # 8, within a factor of two


def test_variance_of_the_sampled_step() -> None:
    """With D and e the differences of weights (o x d) and biases, n samples, and a step of size 1/2:

    the step is D S + e m' for the weight and D m + e for the bias, S and m the samples' second moments and mean;
    E|D (S - I)|^2 = (d + 1) |D|^2 / n, E|e m'|^2 = d |e|^2 / n, E|D m|^2 = |D|^2 / n, and the first two do not mix.
    """
    target, other, n, d = random_layer("linear", 5, 7, seed="g"), random_layer("linear", 5, 7, seed="a"), 64, 7
    mapped = mapped_to(target, other)
    assert other.bias is not None and target.bias is not None
    squared, squared_bias = (target.weight - other.weight).square().sum(), (target.bias - other.bias).square().sum()
    squares = []
    for i in range(300):
        weight, bias = distil(mapped, 0.5, 1, normal(f"probes {i}", n, d))
        assert bias is not None
        squares.append(float((weight - other.weight).square().sum() + (bias - other.bias).square().sum()))
    assert sum(squares) / 300 == pytest.approx(float((d + 2) * squared + d * squared_bias) / n, rel=0.1)


def test_the_expected_step_is_a_moving_average() -> None:
    target, mapped = (
        random_layer("conv", 3, 2, 3, 3, seed="g"),
        [random_layer("conv", 3, 2, 3, 3, seed=str(i)) for i in range(4)],
    )
    mean = torch.stack([layer.weight.double() for layer in mapped]).mean(0)
    once, _ = distil(mapped_to(target, *mapped), 0.01)
    torch.testing.assert_close(once, (0.98 * target.weight.double() + 0.02 * mean).float())
    thrice, _ = distil(mapped_to(target, *mapped), 0.01, 3)
    torch.testing.assert_close(thrice, (0.98**3 * target.weight.double() + (1 - 0.98**3) * mean).float())


@pytest.mark.parametrize("bias", [True, False])
def test_a_learning_rate_of_half_gives_the_mean_and_0_changes_nothing(bias: bool) -> None:
    target, mapped = (
        random_layer("linear", 4, 5, bias=bias),
        [random_layer("linear", 4, 5, seed=str(i), bias=bias) for i in "ab"],
    )
    mean = ((mapped[0].weight.double() + mapped[1].weight) / 2).float()
    weight, _ = distil(mapped_to(target, *mapped), 0.5)
    assert torch.equal(weight, mean)
    assert torch.equal(average(mapped_to(target, *mapped))[0], mean)
    for inputs in (None, normal("x", 8, 5)):
        unchanged, unchanged_bias = distil(mapped_to(target, *mapped), 0.0, 1, inputs)
        assert torch.equal(unchanged, target.weight)
        assert (unchanged_bias is None) == (not bias)


@pytest.mark.parametrize(("kind", "shape"), CASES)
def test_equal_layers_change_nothing(kind: str, shape: tuple[int, ...]) -> None:
    target = random_layer(kind, *shape)
    same = mapped_to(target, target, target, target)
    for inputs in (None, normal("x", *pseudo_data_shape(target, 4, 6))):
        weight, bias = distil(same, 0.3, 2, inputs)
        assert bias is not None and target.bias is not None
        assert torch.equal(weight, target.weight) and torch.equal(bias, target.bias)
        assert weight_entropy(weight) - weight_entropy(target.weight) == 0.0


def test_the_order_of_layers_does_not_matter() -> None:
    target = random_layer("linear", 4, 5, seed="g")
    mapped = [random_layer("linear", n, 6 - n, seed=str(n), bias=n != 2) for n in (2, 3, 5)] + [
        random_layer("linear", 4, 5)
    ]
    results = [distil(mapped_to(target, *order), 0.1)[0] for order in permutations(mapped)]
    assert all(torch.equal(results[0], other) for other in results)


def test_only_the_overlap_changes() -> None:
    # target 2 x 3 of zeros; a layer 3 x 2 of ones reaches the columns 0 and 1; a bias on one side is not compared
    target = Layer("g", "linear", 0, 0.0, torch.zeros(2, 3), torch.zeros(2))
    other = Layer("a", "linear", 0, 0.0, torch.ones(3, 2))
    weight, bias = distil(mapped_to(target, other), 0.25)
    assert weight.tolist() == [[0.5, 0.5, 0.0]] * 2 and bias is not None and bias.tolist() == [0.0, 0.0]
    mean, mean_bias = average(mapped_to(target, other))
    assert mean.tolist() == [[1.0, 1.0, 0.0]] * 2 and mean_bias is not None and mean_bias.tolist() == [0.0, 0.0]


def test_kernels_are_aligned_at_their_centre() -> None:
    target = Layer("g", "conv", 0, 0.0, torch.zeros(1, 1, 5, 5))
    other = Layer("a", "conv", 0, 0.0, torch.arange(9.0).reshape(1, 1, 3, 3))
    weight, _ = average(mapped_to(target, other))
    assert torch.equal(weight[0, 0, 1:4, 1:4], other.weight[0, 0])
    assert float(weight.abs().sum()) == float(other.weight.sum())
    back, _ = average(mapped_to(other, target))
    assert torch.equal(back, torch.zeros(1, 1, 3, 3))


def test_layers_of_several_shapes() -> None:
    # one of two layers covers the first input only: L = 1/2 (|g - a|^2 on both inputs + |g - b|^2 on the first)
    target = Layer("g", "linear", 0, 0.0, torch.zeros(1, 2))
    a, b = replace(target, weight=torch.tensor([[2.0, 4.0]])), replace(target, weight=torch.tensor([[6.0]]))
    weight, _ = distil(mapped_to(target, a, b), 0.1)
    torch.testing.assert_close(weight, torch.tensor([[0.1 * (2 + 6), 0.1 * 4]]))  # 2 alpha / 2 = 0.1
    mean, _ = average(mapped_to(target, a, b))
    assert mean.tolist() == [[4.0, 4.0]]


# Eq. 7

shapes = st.lists(st.integers(1, 4), min_size=4, max_size=4)


@quick
@given(shapes, shapes, st.sampled_from(["flat", "block"]), st.sampled_from(["retain", "zero"]))
def test_projections(a: list[int], b: list[int], how: str, remainder: str) -> None:
    own, received = normal("own", *a), normal("received", *b)
    result = project(own, received, how, remainder)  # type: ignore[arg-type]
    assert result.shape == own.shape
    assert torch.equal(project(result, received, how, remainder), result)  # type: ignore[arg-type]
    small = trim(received, own.shape, how)  # type: ignore[arg-type]
    assert torch.equal(project(own, small, how, remainder), result)  # type: ignore[arg-type]
    assert torch.equal(project(own, own, how, remainder), own)  # type: ignore[arg-type]
    # projecting back restores the received values
    assert torch.equal(project(received, result, how, "retain"), received)  # type: ignore[arg-type]
    untouched = torch.ones_like(own, dtype=torch.bool)
    if how == "flat":
        size = min(own.numel(), received.numel())
        assert torch.equal(result.flatten()[:size], received.flatten()[:size])
        assert small.numel() == size
        untouched.view(-1)[:size] = False
    else:
        common = overlap_shape(a, b)
        assert torch.equal(crop(result, common), crop(received, common))
        assert tuple(small.shape) == common
        crop(untouched, common).fill_(False)
    expected = own if remainder == "retain" else torch.zeros_like(own)
    assert torch.equal(result[untouched], expected[untouched])


def test_flat_order_is_row_major_for_any_memory_format() -> None:
    own = normal("own", 2, 3, 2, 2).to(memory_format=torch.channels_last)
    received = torch.arange(30.0)
    assert project(own, received).flatten().tolist() == list(range(24))
