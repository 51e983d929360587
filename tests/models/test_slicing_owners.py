"""Extracting slices and merging them as a mean over owners, both ways exact."""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from polyfed.benchmarks import slicing as slicing_benchmark
from polyfed.core.averaging import WeightedMean
from polyfed.errors import InputError
from polyfed.models import ModelSpec, SplitModel
from polyfed.models.slicing import (
    Index,
    OwnerMean,
    Rule,
    classifier_tensors,
    coverage,
    cut,
    drawn,
    extract,
    only_rows,
    prefix,
    skeleton,
    window,
)

SHAPE = (1, 8, 8)
Weights = dict[str, Tensor]

RULES = st.one_of(
    st.just(prefix),
    st.integers(0, 100).map(window),
    st.integers(0, 100).map(lambda seed: drawn(torch.Generator().manual_seed(seed))),
)
NAMES = st.sampled_from(["tiny-resnet-wide", "tiny-resnet10", "tiny-cnn", "tiny-vit-2", "tiny-mobile", "tiny-mlp"])
WIDTHS = st.sampled_from([0.1, 0.25, 0.3, 0.5, 0.6, 0.75, 0.9, 1.0])
WEIGHTS = st.floats(0.01, 1000)


@lru_cache(maxsize=64)
def skeleton_of(name: str, width: float) -> SplitModel:
    return skeleton(ModelSpec(name, width=width), shape=SHAPE, classes=5)


def weights_like(name: str, seed: int) -> Weights:
    """Values of a model of this name, unlike a fresh one in every tensor."""
    generator = torch.Generator().manual_seed(seed)
    return {
        tensor: values(tensor, like.shape, generator)
        if like.is_floating_point()
        else torch.randint(1, 100, like.shape, generator=generator)
        for tensor, like in skeleton_of(name, 1.0).state_dict().items()
    }


def values(name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
    """Both signs, also of zero; variances are positive."""
    drawn_values = torch.randn(shape, generator=generator)
    return drawn_values.abs() if name.endswith("running_var") else torch.where(drawn_values < -1, -0.0, drawn_values)


def bits(tensor: Tensor) -> Tensor:
    """Equal only where also the signs of zeros are."""
    return tensor.view(torch.int32) if tensor.dtype == torch.float32 else tensor


def places_of(name: str, width: float, rule: Rule = prefix) -> dict[str, Index]:
    return cut(skeleton_of(name, 1.0), skeleton_of(name, width), rule)


def owned(like: Weights, places: dict[str, Index]) -> dict[str, Tensor]:
    return {name: count > 0 for name, count in coverage(like, [(places, 1.0)]).items()}


def assert_same_bits(found: Weights, wanted: Weights) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype and torch.equal(bits(found[name]), bits(tensor)), name


@settings(max_examples=25, deadline=None)
@given(NAMES, WIDTHS, RULES, WEIGHTS)
def test_one_owner_is_put_back_where_it_was_taken(name: str, width: float, rule: Rule, weight: float) -> None:
    """T1 and T5: the covered positions are the owner's, all others keep their bits; nothing given is changed."""
    big, other = weights_like(name, 1), weights_like(name, 2)
    places = places_of(name, width, rule)
    part = extract(big, places)
    copies = [{k: v.clone() for k, v in tensors.items()} for tensors in (big, other, part)]
    owners = OwnerMean(other)
    owners.add(part, places, weight)
    merged = owners.result(other)
    for tensor, mask in owned(big, places).items():
        assert torch.equal(bits(merged[tensor]), bits(torch.where(mask, big[tensor], other[tensor]))), tensor
    assert_same_bits(extract(merged, places), part)
    for tensors, copy in zip((big, other, part), copies, strict=True):
        assert_same_bits(tensors, copy)


@settings(max_examples=25, deadline=None)
@given(NAMES, WIDTHS, RULES, st.lists(WEIGHTS, min_size=1, max_size=5))
def test_mean_of_equal_slices_is_the_slice(name: str, width: float, rule: Rule, weights: list[float]) -> None:
    places = places_of(name, width, rule)
    part = extract(weights_like(name, 1), places)
    old = weights_like(name, 2)
    owners = OwnerMean(old)
    for weight in weights:
        owners.add(part, places, weight)
    assert_same_bits(extract(owners.result(old), places), part)


@settings(max_examples=25, deadline=None)
@given(NAMES, st.lists(st.tuples(WIDTHS, RULES, WEIGHTS), min_size=2, max_size=4))
def test_mean_is_that_of_the_owners_of_each_position(name: str, members: list[tuple[float, Rule, float]]) -> None:
    """Against whole tensors with weight zero outside of the slice."""
    old = weights_like(name, 9)
    owners = OwnerMean(old)
    total = {tensor: torch.zeros(like.shape, dtype=torch.float64) for tensor, like in old.items()}
    weighted = {tensor: torch.zeros(like.shape, dtype=torch.float64) for tensor, like in old.items()}
    for seed, (width, rule, weight) in enumerate(members):
        full, places = weights_like(name, seed), places_of(name, width, rule)
        owners.add(extract(full, places), places, weight)
        for tensor, mask in owned(old, places).items():
            total[tensor] += mask.double() * weight
            weighted[tensor] += mask.double() * weight * full[tensor].double()
    merged = owners.result(old)
    for tensor, like in old.items():
        if like.is_floating_point():
            wanted = torch.where(total[tensor] > 0, weighted[tensor] / total[tensor], like.double())
            torch.testing.assert_close(merged[tensor].double(), wanted, rtol=1e-7, atol=0)
            torch.testing.assert_close(owners.weights()[tensor], total[tensor])


def test_weighted_mean_by_hand() -> None:
    old = {"w": torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), "b": torch.tensor([7.0, 8.0]), "n": torch.tensor(4)}
    row, corner = torch.tensor([1]), torch.tensor([0, 2])
    owners = OwnerMean(old)
    owners.add({"w": torch.tensor([[10.0, 20.0]]), "b": torch.tensor([30.0]), "n": torch.tensor(9)},
               {"w": (row, corner), "b": (row,), "n": ()}, weight=3.0)  # fmt: skip
    owners.add({"w": torch.tensor([[0.0, 2.0, 4.0], [6.0, 8.0, 10.0]]), "n": torch.tensor(6)},
               {"w": (None, None), "b": (None,), "n": ()})  # fmt: skip
    merged = owners.result(old)
    # Row 1: (3 * 10 + 6) / 4, then one owner, then (3 * 20 + 10) / 4. Nobody sent b[0]; the counter is the largest.
    assert merged["w"].tolist() == [[0.0, 2.0, 4.0], [9.0, 8.0, 17.5]]
    assert merged["b"].tolist() == [7.0, 30.0]
    assert merged["n"].item() == 9 and merged["n"].dtype == torch.int64
    assert owners.weights()["w"].tolist() == [[1.0, 1.0, 1.0], [4.0, 1.0, 4.0]]


def test_rolled_window_wraps_around_by_hand() -> None:
    places = {"b": (window(5)(3, 2),)}  # 5 mod 3 is 2: places 2 and 0
    part = extract({"b": torch.tensor([1.0, 2.0, 3.0])}, places)
    assert part["b"].tolist() == [3.0, 1.0]
    owners = OwnerMean({"b": torch.zeros(3)})
    owners.add({"b": torch.tensor([30.0, 10.0])}, places)
    assert owners.result({"b": torch.tensor([1.0, 2.0, 3.0])})["b"].tolist() == [10.0, 2.0, 30.0]


@settings(max_examples=15, deadline=None)
@given(NAMES, st.lists(st.integers(0, 500), min_size=1, max_size=4), st.integers(0, 50))
def test_full_width_is_plain_averaging_to_the_last_bit(name: str, samples: list[int], offset: int) -> None:
    """T4, for uniform weights and for samples; also for a window, which is everything at rate 1."""
    old = weights_like(name, 50)
    for weights in ([1.0] * len(samples), [float(n) for n in samples]):
        owners, plain = OwnerMean(old), WeightedMean()
        for seed, weight in enumerate(weights):
            full = weights_like(name, seed)
            owners.add(full, places_of(name, 1.0, window(offset)), weight)
            plain.add(full, weight)
        assert_same_bits(owners.result(old), dict(plain.result(old)))


def test_differences_may_be_negative_and_variances_may_not() -> None:
    places: dict[str, Index] = {"norm.running_var": (None,)}
    owners = [OwnerMean({"norm.running_var": torch.ones(2)}) for _ in range(2)]
    for mean in owners:
        mean.add({"norm.running_var": torch.tensor([-0.5, 0.5])}, places)
    assert owners[0].mean({"norm.running_var": torch.zeros(2)})["norm.running_var"].tolist() == [-0.5, 0.5]
    assert owners[1].result({"norm.running_var": torch.zeros(2)})["norm.running_var"].tolist() == [0.0, 0.5]


def test_nothing_of_any_weight_changes_nothing() -> None:
    old = weights_like("tiny-mobile", 1)
    assert_same_bits(OwnerMean(old).result(old), old)
    owners = OwnerMean(old)
    owners.add(weights_like("tiny-mobile", 2), places_of("tiny-mobile", 1.0), weight=0.0)
    assert_same_bits(owners.result(old), old)


def test_smallest_client_changes_its_block_only() -> None:
    """B1: the leading ceil(r * n) of every axis, and nothing else."""
    old, places = weights_like("tiny-resnet-wide", 1), places_of("tiny-resnet-wide", 1 / 16)
    owners = OwnerMean(old)
    owners.add({name: tensor + 1 for name, tensor in extract(old, places).items()}, places)
    merged = owners.result(old)
    changed = (
        merged["backbone.trunk.stages.2.0.layers.0.conv.weight"]
        != old["backbone.trunk.stages.2.0.layers.0.conv.weight"]
    )
    assert changed[:2, :1].all() and changed.sum() == 2 * 1 * 9  # ceil(32 / 16) and ceil(16 / 16), 3x3 kernels
    assert not torch.equal(merged["head.bias"], old["head.bias"])


def test_rows_of_absent_classes_stay_out() -> None:
    model = skeleton("tiny-mlp@0.5", shape=SHAPE, classes=5)
    names = classifier_tensors(model)
    assert names == ("head.weight", "head.bias")
    old, places = weights_like("tiny-mlp", 1), places_of("tiny-mlp", 0.5)
    part = extract(weights_like("tiny-mlp", 2), places)
    owners = OwnerMean(old)
    owners.add(*only_rows(part, places, names, torch.tensor([3, 1])))
    merged = owners.result(old)
    for name in names:
        assert torch.equal(merged[name][[0, 2, 4]], old[name][[0, 2, 4]])
    assert torch.equal(merged["head.weight"][[1, 3], :32], part["head.weight"][[1, 3]])
    assert torch.equal(merged["head.weight"][:, 32:], old["head.weight"][:, 32:])
    assert torch.equal(merged["head.bias"][[1, 3]], part["head.bias"][[1, 3]])


def test_classifier_of_a_head_with_a_hidden_layer_is_its_last_layer() -> None:
    model = skeleton(ModelSpec("tiny-mlp", head="relu-7"), shape=SHAPE, classes=5)
    assert classifier_tensors(model) == ("head.2.weight", "head.2.bias")


def test_what_does_not_fit_is_refused_before_anything_is_added() -> None:
    old, places = weights_like("tiny-mlp", 1), places_of("tiny-mlp", 0.5)
    part = extract(old, places)
    owners = OwnerMean(old)
    with pytest.raises(InputError, match=r"'head.weight' has shape \(5, 64\), but its slice has shape \(5, 32\)"):
        owners.add(part | {"head.weight": old["head.weight"]}, places)
    with pytest.raises(InputError, match=r"'head.wait' is not in the slice.*did you mean 'head.weight'"):
        owners.add(part | {"head.wait": old["head.weight"]}, places)
    with pytest.raises(InputError, match=r"no tensor 'head.wait' to slice"):
        extract(old, {"head.wait": (None, None)})
    with pytest.raises(InputError, match=r"no tensor 'head.wait'"):
        coverage(old, [({"head.wait": (None, None)}, 1.0)])
    with pytest.raises(InputError, match=r"no tensor 'head.wait' to take rows of"):
        only_rows(part, places, ["head.wait"], torch.tensor([0]))
    with pytest.raises(InputError, match=r"cuts axes \[0, 2\]"):
        OwnerMean({"w": torch.zeros(2, 2, 2)}).add(
            {"w": torch.zeros(1, 2, 1)}, {"w": (torch.tensor([0]), None, torch.tensor([1]))}
        )
    assert_same_bits(owners.result(old), old)


def test_building_and_slicing_the_largest_resnet_is_lean() -> None:
    run = slicing_benchmark.in_fresh_process()
    assert 230e6 < run["size"] < 250e6  # 60.2 million parameters in four bytes, and buffers
    assert 1 < run["peak_over_size"] < 2.5
