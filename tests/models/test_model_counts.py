"""Sizes against the published ones. Built on the meta device: nothing is allocated, whatever the model."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import nn

from polyfed.models import ModelSpec, SplitModel, build, describe, group
from polyfed.models.catalogue import ARCHITECTURES

IMAGE_MODELS = [name for name, architecture in ARCHITECTURES.items() if architecture.takes == "picture"]
CIFAR = (3, 32, 32)


def on_meta(spec: ModelSpec | str, shape: tuple[int, int, int], classes: int) -> SplitModel:
    with torch.device("meta"):
        return build(spec, shape=shape, classes=classes)


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


# Name, feature width, extractor, own head with 10 and with 100 classes, head after pooling to 512 with 10 and 100.
TABLE = [
    ("cnn4", 512, 873_408, 878_538, 924_708, 878_538, 924_708),
    ("cnn-fedfree", 1000, 3_175_896, 3_185_906, 3_275_996, None, None),
    ("resnet4", 64, 83_520, 84_170, 90_020, 88_650, 134_820),
    ("resnet6", 128, 313_664, 314_954, 326_564, 318_794, 364_964),
    ("resnet8", 256, 1_232_704, 1_235_274, 1_258_404, 1_237_834, 1_284_004),
    ("resnet10", 512, 4_905_792, 4_910_922, 4_957_092, 4_910_922, 4_957_092),
    ("resnet14", 512, 10_807_104, 10_812_234, 10_858_404, 10_812_234, 10_858_404),
    ("resnet18", 512, 11_176_512, 11_181_642, 11_227_812, 11_181_642, 11_227_812),
    ("resnet22", 512, 17_077_824, 17_082_954, 17_129_124, 17_082_954, 17_129_124),
    ("resnet26", 512, 17_447_232, 17_452_362, 17_498_532, 17_452_362, 17_498_532),
    ("resnet34", 512, 21_284_672, 21_289_802, 21_335_972, 21_289_802, 21_335_972),
    ("resnet50", 2048, 23_508_032, 23_528_522, 23_712_932, 23_513_162, 23_559_332),
    ("resnet101", 2048, 42_500_160, 42_520_650, 42_705_060, 42_505_290, 42_551_460),
    ("resnet152", 2048, 58_143_808, 58_164_298, 58_348_708, 58_148_938, 58_195_108),
    ("googlenet", 1024, 5_599_904, 5_610_154, 5_702_404, 5_605_034, 5_651_204),
    ("mobilenet-v2", 1280, 2_223_872, 2_236_682, 2_351_972, 2_229_002, 2_275_172),
    ("mobilenet-v3-small", 576, 927_008, 932_778, 984_708, 932_138, 978_308),
    ("mobilenet-v3-large", 960, 2_971_952, 2_981_562, 3_068_052, 2_977_082, 3_023_252),
    ("shufflenet-v2-x1.5", 1024, 2_478_624, 2_488_874, 2_581_124, 2_483_754, 2_529_924),
    ("shufflenet-v2-x2.0", 2048, 5_344_996, 5_365_486, 5_549_896, 5_350_126, 5_396_296),
    ("efficientnet-v2-s", 1280, 20_177_488, 20_190_298, 20_305_588, 20_182_618, 20_228_788),
    ("vit-b-16", 768, 85_651_200, 85_658_890, 85_728_100, None, None),
    ("vit-b-32", 768, 87_418_368, 87_426_058, 87_495_268, None, None),
]


@pytest.mark.parametrize("row", TABLE, ids=[row[0] for row in TABLE])
def test_parameters_at_32_pixels(row: tuple[str, int, int, int, int, int | None, int | None]) -> None:
    name, width, extractor, own10, own100, pooled10, pooled100 = row
    for classes, own, pooled in ((10, own10, pooled10), (100, own100, pooled100)):
        model = on_meta(name, CIFAR, classes)
        assert (model.feature_dim, count(model.backbone), count(model)) == (width, extractor, own)
        if pooled is not None:
            assert count(on_meta(ModelSpec(name, feature_dim=512), CIFAR, classes)) == pooled


@pytest.mark.parametrize(
    ("spec", "shape", "classes", "extractor", "whole"),
    [
        ("cnn4", (3, 64, 64), 10, 5_592_000, 5_597_130),
        ("cnn4", (3, 64, 64), 100, 5_592_000, 5_643_300),
        ("cnn4", (1, 28, 28), 10, 576_896, 582_026),
        ("vit-tiny", (3, 128, 128), 10, 1_940_160, 1_942_090),
        ("vit-tiny", (3, 128, 128), 100, 1_940_160, 1_959_460),
        (ModelSpec("vit-tiny", feature_dim=512), (3, 128, 128), 10, 1_940_160, 1_945_290),
        (ModelSpec("vit-tiny", feature_dim=512), (3, 128, 128), 100, 1_940_160, 1_991_460),
        (ModelSpec("vit-b-16", feature_dim=512, head="tanh-768"), CIFAR, 100, 85_651_200, 86_122_084),
        # The small stem has 7,680 parameters fewer; with one channel 8,832 fewer.
        (ModelSpec("resnet18", stem="small"), CIFAR, 10, 11_176_512 - 7_680, 11_181_642 - 7_680),
        (ModelSpec("resnet18", stem="small"), (1, 32, 32), 10, 11_176_512 - 8_832, 11_181_642 - 8_832),
        (ModelSpec("resnet18"), (1, 28, 28), 10, 11_176_512 - 8_832, 11_181_642 - 8_832),
    ],
)
def test_parameters_elsewhere(
    spec: ModelSpec | str, shape: tuple[int, int, int], classes: int, extractor: int, whole: int
) -> None:
    model = on_meta(spec, shape, classes)
    assert (count(model.backbone), count(model)) == (extractor, whole)


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("resnet18", 11_689_512),
        ("resnet34", 21_797_672),
        ("resnet50", 25_557_032),
        ("resnet101", 44_549_160),
        ("resnet152", 60_192_808),
        ("mobilenet-v2", 3_504_872),
        ("googlenet", 6_624_904),
        ("vit-b-16", 86_567_656),
    ],
)
def test_imagenet_parameters(name: str, published: int) -> None:
    assert count(on_meta(name, (3, 224, 224), 1000)) == published


def test_inco_group_parameters() -> None:
    stage = [count(on_meta(spec, CIFAR, 10)) for spec in group("inco-stage")]
    assert stage == [4_910_922, 10_812_234, 11_181_642, 17_082_954, 17_452_362]
    layer = [count(on_meta(spec, (3, 224, 224), 10)) for spec in group("inco-layer")]
    assert layer == [14_571_658, 16_346_122, 18_120_586, 19_895_050, 21_669_514]
    width = [count(on_meta(spec, CIFAR, 10)) for spec in group("inco-width")]
    assert width == [69_822, 275_762, 1_096_026, 4_370_090, 17_452_362]


def test_flops_are_twice_the_multiply_accumulates() -> None:
    # cnn4 at 3x32x32 by hand: 28*28*32*3*25 + 10*10*64*32*25 + 1600*512 + 512*10 multiply-accumulates.
    assert describe("cnn4").flops == 2 * (1_881_600 + 5_120_000 + 819_200 + 5_120)
    # InCo's five at 32 pixels, extractor as printed plus nothing else: in millions, 18.14 to 55.89.
    macs = [round(describe(spec).flops / 2e6, 2) for spec in group("inco-stage")]
    assert macs == [18.14, 27.58, 37.02, 46.45, 55.89]
    assert describe("resnet26").flops == 2 * 55_890_944


def test_describe_says_what_it_measured() -> None:
    info = describe("resnet18")
    assert (info.name, info.params, info.extractor_params) == ("resnet18", 11_181_642, 11_176_512)
    assert (info.feature_dim, info.input) == (512, CIFAR)
    at_64 = describe("cnn4", shape=(3, 64, 64))
    assert (at_64.params, at_64.input) == (5_597_130, (3, 64, 64))
    assert describe("resnet26@0.0625").name == "resnet26@0.0625"


def test_every_model_can_be_described() -> None:
    for name in ARCHITECTURES:
        info = describe(name)
        assert 0 < info.extractor_params < info.params
        assert info.flops > 0


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 8, 8), (1, 28, 28), (3, 32, 32)])
def test_tiny_models_stay_below_50_000(shape: tuple[int, int, int]) -> None:
    for name in IMAGE_MODELS:
        if name.startswith("tiny-"):
            assert count(on_meta(name, shape, 10)) < 50_000, name


@pytest.mark.parametrize("name", [n for n in IMAGE_MODELS if "vit" not in n and "shufflenet" not in n])
def test_a_narrow_model_has_the_layers_of_the_wide_one_and_the_ceiling_of_its_outputs(
    name: str,
) -> None:
    """What cutting a model out of a wider one relies on; a third, so that little divides evenly."""
    width = 1 / 3
    wide = on_meta(name, CIFAR, 10).state_dict()
    narrow = on_meta(ModelSpec(name, width=width), CIFAR, 10).state_dict()
    assert list(narrow) == list(wide)
    for key, value in narrow.items():
        if value.dim() > 0 and not key.startswith("head."):
            assert value.shape[0] == math.ceil(wide[key].shape[0] * width - 1e-9), key
    assert narrow["head.weight"].shape[0] == wide["head.weight"].shape[0] == 10


@pytest.mark.parametrize(("small", "large"), [("vit-s-8", "vit-s-12"), ("tiny-vit-2", "tiny-vit-6")])
def test_a_shallow_transformer_has_the_first_blocks_of_the_deep_one(small: str, large: str) -> None:
    shallow, deep = on_meta(small, CIFAR, 10).state_dict(), on_meta(large, CIFAR, 10).state_dict()
    assert set(shallow) < set(deep)
    assert all(shallow[key].shape == deep[key].shape for key in shallow)


@pytest.mark.parametrize("family", ["inco-stage", "tiny-resnets"])
def test_a_shallow_resnet_has_the_first_blocks_of_every_stage(family: str) -> None:
    states = [on_meta(spec, CIFAR, 10).state_dict() for spec in group(family)]
    for shallow, deep in itertools.pairwise(states):
        assert set(shallow) < set(deep)
        assert all(shallow[key].shape == deep[key].shape for key in shallow)
