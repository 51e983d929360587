"""The parts around and inside the networks, against numbers worked out by hand."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from polyfed import models
from polyfed.errors import InputError
from polyfed.models import ModelSpec, build, custom_build, from_module
from polyfed.models.blocks import make_norm, multiple_of_8, scaled
from polyfed.models.parts import Normalise, PoolFeatures, PoolInput, conv_pool, make_head
from polyfed.models.shufflenet import shuffle
from polyfed.models.slicing import skeleton

SHAPE = (1, 8, 8)


def images(count: int, shape: tuple[int, int, int]) -> Tensor:
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(5))


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 2048), st.fractions(min_value="1/16", max_value=1, max_denominator=64))
def test_width_keeps_the_ceiling(channels: int, width: Fraction) -> None:

    assert scaled(channels, float(width)) == math.ceil(width * channels)


def test_width_is_never_zero_and_ignores_rounding_noise() -> None:
    assert scaled(8, 1 / 1024) == 1
    assert scaled(30, 0.1) == 3  # 30 * 0.1 is 3.0000000000000004 in floating point


def test_multiples_of_8() -> None:
    # 18 would go down to 16, which is 11 % less, so up to 24; 72 / 4 is the case in MobileNetV3.
    assert [multiple_of_8(n) for n in (4, 16, 18, 24, 30, 60, 144)] == [8, 16, 24, 24, 32, 64, 144]


def test_normalisation_is_per_channel_and_not_a_parameter() -> None:
    layer = Normalise((0.5, 0.25), (0.5, 2.0), 2)
    x = torch.tensor([[[[1.0]], [[0.75]]]])
    assert layer(x).flatten().tolist() == [1.0, 0.25]
    assert not list(layer.parameters()) and not layer.state_dict()


def test_default_normalisation_maps_pixels_to_plus_minus_one() -> None:
    model = build("tiny-mlp", shape=(3, 8, 8), classes=10)
    normalise = model.backbone.get_submodule("normalise")
    assert normalise(torch.zeros(1, 3, 8, 8)).unique().tolist() == [-1.0]
    assert normalise(torch.ones(1, 3, 8, 8)).unique().tolist() == [1.0]
    shifted = build(ModelSpec("tiny-mlp", mean=(0.1, 0.2, 0.3), std=(1.0,)), shape=(3, 8, 8), classes=10)
    middle = shifted.backbone.get_submodule("normalise")(torch.zeros(1, 3, 1, 1)).flatten()
    torch.testing.assert_close(middle, torch.tensor([-0.1, -0.2, -0.3]))


def test_feature_pooling_repeats_and_averages() -> None:
    # Narrow to wide: every value repeated; wide to narrow: means of neighbours; 5 to 4: overlapping windows.
    assert PoolFeatures(4)(torch.tensor([[1.0, 2.0]])).tolist() == [[1.0, 1.0, 2.0, 2.0]]
    assert PoolFeatures(2)(torch.tensor([[1.0, 3.0, 5.0, 9.0]])).tolist() == [[2.0, 7.0]]
    assert PoolFeatures(4)(torch.tensor([[1.0, 3.0, 5.0, 7.0, 9.0]])).tolist() == [[2.0, 4.0, 6.0, 8.0]]


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 3))
def test_feature_pooling_of_one_image_is_that_of_a_batch(own: int, wanted: int, batch: int) -> None:
    z = torch.rand(batch, own, generator=torch.Generator().manual_seed(own))
    pooled = PoolFeatures(wanted)(z)
    assert pooled.shape == (batch, wanted)
    torch.testing.assert_close(PoolFeatures(wanted)(z[:1]), pooled[:1])
    if own == wanted:
        torch.testing.assert_close(pooled, z)


def test_input_pooling_leaves_small_images_alone() -> None:
    x = images(1, (1, 4, 8))
    pooled = PoolInput(4)(x)
    assert pooled.shape == (1, 1, 4, 4)
    torch.testing.assert_close(pooled, (x[..., 0::2] + x[..., 1::2]) / 2)


def test_common_feature_width_needs_no_adapter_where_it_is_the_own() -> None:
    same = build(ModelSpec("tiny-cnn", feature_dim=64), shape=SHAPE, classes=10)
    other = build(ModelSpec("tiny-cnn", feature_dim=512), shape=SHAPE, classes=10)
    assert "adapter" not in dict(same.backbone.named_children())
    assert isinstance(other.backbone.get_submodule("adapter"), PoolFeatures)
    assert isinstance(other.head, nn.Linear) and other.head.in_features == other.feature_dim == 512


def test_fedvtc_features_come_from_the_last_map() -> None:
    model = build(ModelSpec("tiny-mobile", feature_map=(4, 7, 7)), shape=(1, 28, 28), classes=10).eval()
    assert model.feature_dim == 4 * 7 * 7
    x = images(2, (1, 28, 28))
    adapter = model.backbone.get_submodule("adapter")
    assert isinstance(adapter, nn.Sequential) and isinstance(adapter[0], nn.Conv2d)
    assert adapter[0].weight.shape == (4, 64, 1, 1)
    trunk_map = model.backbone.get_submodule("trunk")(model.backbone.get_submodule("normalise")(x))
    assert trunk_map.dim() == 4
    torch.testing.assert_close(model.features(x), adapter(trunk_map))


def test_conv_pool_by_hand() -> None:
    adapter = conv_pool(2, (1, 1, 2))
    conv = adapter[0]
    assert isinstance(conv, nn.Conv2d) and conv.bias is not None
    nn.init.constant_(conv.weight, 1.0)
    nn.init.zeros_(conv.bias)
    # Sum of two channels, then the mean of each half of the row: (1+10, 3+30) and (5+50, 7+70).
    x = torch.tensor([[[[1.0, 3.0, 5.0, 7.0]], [[10.0, 30.0, 50.0, 70.0]]]])
    assert adapter(x).tolist() == [[22.0, 66.0]]


def test_flat_models_get_a_linear_layer_for_a_feature_map() -> None:
    model = build(ModelSpec("tiny-mlp", feature_map=(4, 2, 2)), shape=SHAPE, classes=10)
    adapter = model.backbone.get_submodule("adapter")
    assert isinstance(adapter, nn.Linear) and (adapter.in_features, adapter.out_features) == (64, 16)
    with pytest.raises(InputError, match="adapter conv_pool needs a convolutional feature map"):
        build(ModelSpec("tiny-mlp", feature_map=(4, 2, 2), adapter="conv_pool"), shape=SHAPE, classes=10)
    linear = build(ModelSpec("tiny-resnet", feature_dim=16, adapter="linear"), shape=SHAPE, classes=10)
    assert isinstance(linear.backbone.get_submodule("adapter"), nn.Linear)


def test_heads() -> None:
    def units(head: str | None) -> list[int]:
        return [m.out_features for m in make_head(head, 512, 10).modules() if isinstance(m, nn.Linear)]

    assert units(None) == units("linear") == [10]
    assert units("relu-256") == [256, 10]
    assert units("tanh-768") == [768, 10]
    assert any(isinstance(m, nn.Tanh) for m in make_head("tanh-768", 512, 10).modules())


def test_dropout_is_the_published_one_or_the_asked_one() -> None:
    def rates(spec: ModelSpec) -> list[float]:
        with torch.device("meta"):
            model = build(spec, shape=(3, 32, 32), classes=10)
        return [m.p for m in model.modules() if isinstance(m, nn.Dropout)]

    assert rates(ModelSpec("googlenet")) == rates(ModelSpec("mobilenet-v2")) == [0.2]
    assert rates(ModelSpec("googlenet", dropout=0.0)) == []
    assert rates(ModelSpec("resnet18")) == []
    assert rates(ModelSpec("resnet18", dropout=0.5)) == [0.5]


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 300), st.sampled_from(["group", "layer"]))
def test_group_norms_divide_and_do_not_erase_single_pixels(channels: int, norm: str) -> None:
    layer = make_norm(norm, channels)
    assert isinstance(layer, nn.GroupNorm)
    assert channels % layer.num_groups == 0
    if channels > 1:
        x = torch.rand(1, channels, 1, 1, generator=torch.Generator().manual_seed(channels))
        assert layer(x).abs().max() > 0.1


def test_shuffle_takes_turns() -> None:
    x = torch.arange(6.0).reshape(1, 6, 1, 1)
    assert shuffle(x).flatten().tolist() == [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]


class Net(nn.Module):
    """A user's network with its head inside another module."""

    def __init__(self, *, softmax: bool = False, flat: bool = True) -> None:
        super().__init__()
        body: list[nn.Module] = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
        self.body = nn.Sequential(*body, *([nn.Flatten()] if flat else []))
        self.top = nn.ModuleDict({"classifier": nn.Linear(4 if flat else 1, 10)})
        self.softmax = softmax

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.top["classifier"](self.body(x))
        return out.softmax(-1) if self.softmax else out


def test_any_module_can_be_cut_at_its_head() -> None:
    module = Net().train()
    before = {k: v.clone() for k, v in module.state_dict().items()}
    model = from_module(module, "top.classifier", shape=SHAPE, classes=10)
    x = images(3, SHAPE)
    assert model.training and module.training and model.has_batchnorm
    assert model.eval().features(x).shape == (3, 4)
    torch.testing.assert_close(model(x), module.eval()(x))
    # The module itself is left as it was, and shares nothing with the cut one.
    nn.init.zeros_(next(model.parameters()))
    for key, value in module.state_dict().items():
        assert torch.equal(value, before[key]), key
    assert isinstance(module.top["classifier"], nn.Linear)


def test_wrong_cuts_say_what_is_wrong() -> None:
    with pytest.raises(InputError, match=r"Net has no part 'classifier' that could be its head; .*top\.classifier"):
        from_module(Net(), "classifier", shape=SHAPE, classes=10)
    with pytest.raises(InputError, match="has no part ''"):
        from_module(Net(), "", shape=SHAPE, classes=10)
    with pytest.raises(InputError, match=r"The head 'body\.0' of Net is a Conv2d, a Linear is needed"):
        from_module(Net(), "body.0", shape=SHAPE, classes=10)
    with pytest.raises(InputError, match="has 10 outputs, but the data has 5 classes"):
        from_module(Net(), "top.classifier", shape=SHAPE, classes=5)
    with pytest.raises(InputError, match="does more after its head"):
        from_module(Net(softmax=True), "top.classifier", shape=SHAPE, classes=10)
    with pytest.raises(InputError, match="one flat feature vector per sample"):
        from_module(Net(flat=False), "top.classifier", shape=SHAPE, classes=10)
    with pytest.raises(InputError, match=r"Net does not take samples of shape \(3, 8, 8\)"):
        from_module(Net(), "top.classifier", shape=(3, 8, 8), classes=10)
    with pytest.raises(InputError, match="Pair returns a tuple; return only the logits"):
        from_module(Pair(), "out", shape=SHAPE, classes=10)


@pytest.mark.parametrize("tried_bytes", [0, 256 << 20], ids=["on the meta device", "with real weights"])
def test_skeletons_of_registered_modules_are_checked(tried_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(custom_build, "TRIED_BYTES", tried_bytes)
    models.register("unsplit", lambda: Net(flat=False), head="top.classifier")
    models.register("softmax", lambda: Net(softmax=True), head="top.classifier")
    models.register("net", Net, head="top.classifier")
    with pytest.raises(InputError, match="one flat feature vector per sample"):
        skeleton("unsplit", shape=SHAPE, classes=10)
    with pytest.raises(InputError, match=r"Net does not take samples of shape \(3, 8, 8\)"):
        skeleton("net", shape=(3, 8, 8), classes=10)
    if tried_bytes:  # values are needed for this one
        with pytest.raises(InputError, match="does more after its head"):
            skeleton("softmax", shape=SHAPE, classes=10)
    before = torch.random.get_rng_state()
    model = skeleton("net", shape=SHAPE, classes=10)
    assert all(p.is_meta for p in model.parameters()) and model.feature_dim == 4
    assert torch.equal(torch.random.get_rng_state(), before)


class Pair(nn.Module):
    """Gives features and logits together."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.flatten(1), self.out(x.flatten(1))


@pytest.mark.parametrize("name", ["tiny-cnn", "tiny-resnet", "tiny-mobile", "tiny-mlp"])
def test_tiny_models_learn_digits(name: str) -> None:
    from sklearn.datasets import load_digits

    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    y = torch.tensor(digits.target)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = build(name, shape=SHAPE, classes=10)
    order = torch.Generator().manual_seed(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(2):
        for batch in torch.randperm(1400, generator=order).reshape(-1, 10):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    with torch.no_grad():
        accuracy = (model.eval()(x[1400:]).argmax(1) == y[1400:]).float().mean().item()
    assert accuracy > 0.8
