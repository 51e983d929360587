"""Layers of FedFree: the entropy of their weights, and how much training changed them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from polyfed.core import rng
from polyfed.methods.fedfree.entropy import entropy_gain, weight_entropy
from polyfed.methods.fedfree.layers import KINDS, Layer, find_layers, most_changed, with_change
from polyfed.models import build

quick = settings(max_examples=25, deadline=None)
integers = st.lists(st.integers(-1000, 1000), min_size=1, max_size=400)


# entropy


@quick
@given(integers, st.sampled_from(["shannon", "collision", "tsallis"]))
def test_entropy_is_bounded(values: list[int], kind: str) -> None:
    most = min(256, len(values))
    bound = 1 - 1 / most if kind == "tsallis" else math.log2(most)  # q = 2: 1 - sum p^2
    entropy = weight_entropy(torch.tensor(values, dtype=torch.float32), kind)  # type: ignore[arg-type]
    assert -1e-12 <= entropy <= bound + 1e-12


@quick
@given(integers, st.integers(1, 50), st.integers(-500, 500), st.randoms(use_true_random=False))
def test_entropy_is_invariant_to_scale_shift_and_order(values: list[int], c: int, d: int, shuffle: object) -> None:
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


def test_entropy_does_not_change_its_input() -> None:
    for dtype in (torch.float32, torch.float64):
        weight = torch.arange(5, dtype=dtype)
        weight_entropy(weight)
        assert weight.tolist() == [0, 1, 2, 3, 4]


def test_random_weights_have_more_entropy_than_heavy_tailed_ones() -> None:
    # This is why an untrained global layer has a gain: uniform weights fill their range, heavy-tailed ones do not.
    g = rng.generator("entropy")
    uniform = torch.rand(50_000, generator=g)
    normal = torch.randn(50_000, generator=g)
    laplace = -torch.log(torch.rand(50_000, generator=g)) * torch.sign(torch.rand(50_000, generator=g) - 0.5)
    assert weight_entropy(uniform) > 7.9 > weight_entropy(normal) > 6.5 > weight_entropy(laplace)


def test_the_gain_of_a_pair_by_hand() -> None:
    # Over [0, 255] the bins have a width of 255/256. The received values 0 and 255 are in two bins: 1 bit. The own
    # values 0 and 0.5 are both in the first one: 0 bits. Over its own range each of them has 1 bit.
    received, own = torch.tensor([0.0, 255.0]), torch.tensor([0.0, 0.5])
    assert weight_entropy(received) == weight_entropy(own) == 1.0
    assert entropy_gain(received, own) == 1.0 and entropy_gain(own, received) == -1.0


@quick
@given(integers, integers, st.integers(1, 50), st.integers(-500, 500))
def test_the_gain_is_antisymmetric_and_invariant_to_a_common_scale_and_shift(
    a: list[int], b: list[int], c: int, d: int
) -> None:
    one, other = torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64)
    gain = entropy_gain(one, other)
    assert entropy_gain(other, one) == -gain and entropy_gain(one, one.flip(0)) == 0
    assert entropy_gain(c * one + d, c * other + d) == gain


def test_untrained_weights_have_no_gain_over_trained_ones() -> None:
    # Training lengthens the tails. With common bins, weights that stayed in a narrow range have less entropy.
    g = rng.generator("entropy")
    untrained = 0.1 * (2 * torch.rand(5000, generator=g) - 1)
    trained = 0.1 * torch.randn(5000, generator=g) * (1 + torch.rand(5000, generator=g))
    assert weight_entropy(untrained) > weight_entropy(trained)
    assert entropy_gain(untrained, trained) < 0


# layers and their change


def test_layers_of_a_model_by_kind_and_depth() -> None:
    model = build("tiny-mobile", shape=(1, 8, 8), classes=4)
    layers = find_layers(model, ["conv", "linear"])
    assert [(layer.kind, layer.index, layer.depth) for layer in layers] == [
        ("conv", 0, 0.0),
        ("conv", 1, 0.5),
        ("conv", 2, 1.0),
        ("linear", 3, 0.0),
    ]
    assert layers[-1].name == "head"
    depthwise = [layer for layer in find_layers(model, KINDS) if layer.kind == "depthwise"]
    assert [tuple(layer.weight.shape) for layer in depthwise] == [(32, 1, 3, 3), (48, 1, 3, 3)]
    assert find_layers(model, ["linear"], exclude=model.head) == []


def test_grouped_convolutions_norms_and_embeddings_are_not_shared() -> None:
    model = nn.Sequential(nn.Conv2d(4, 8, 3, groups=2), nn.BatchNorm2d(8), nn.LayerNorm(8), nn.Embedding(3, 3))
    assert find_layers(model, KINDS) == []


def test_change_is_relative_and_squared() -> None:
    # before: weight (3, 0), bias 4, squares 25. now: weight (3, 1), bias 6: moved 1 + 4. 5 / 25.
    before = Layer("a", "linear", 0, 0.0, torch.tensor([[3.0, 0.0]]), torch.tensor([4.0]))
    now = replace(before, weight=torch.tensor([[3.0, 1.0]]), bias=torch.tensor([6.0]))
    assert with_change(now, before).change == pytest.approx(0.2)
    now, before = (Layer("a", "linear", 0, 0.0, 2 * old.weight, 2 * old.tensors[1]) for old in (now, before))
    assert with_change(now, before).change == pytest.approx(0.2)


def test_change_of_zero_weights_and_of_weights_that_are_not_finite() -> None:
    zero = Layer("a", "linear", 0, 0.0, torch.zeros(1, 2))
    assert with_change(zero, zero).change == 0
    assert with_change(replace(zero, weight=torch.ones(1, 2)), zero).change == pytest.approx(2 / 2e-12)
    for value in (math.nan, math.inf):
        assert with_change(replace(zero, weight=torch.tensor([[value, 0.0]])), zero).change == -math.inf


@quick
@given(st.lists(st.floats(0, 5), max_size=8), st.integers(0, 10))
def test_most_changed_returns_k_layers_and_the_first_of_equal_ones(changes: list[float], k: int) -> None:
    all_layers = [Layer(str(i), "linear", i, 0.0, torch.ones(1, 1), change=c) for i, c in enumerate(changes)]
    chosen = most_changed(all_layers, k)
    assert len(chosen) == min(k, len(changes))
    for layer in chosen:
        for other in all_layers:
            assert other in chosen or (layer.change, -layer.index) > (other.change, -other.index)
