"""Descriptions, names, groups and errors: what a user types and what comes back."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from polyfed.errors import InputError
from polyfed.models import ModelSpec, SplitModel, build, describe, group, group_names, model_group, names, register
from polyfed.models import registry as registry_module
from polyfed.models.catalogue import ARCHITECTURES
from polyfed.models.slicing import EarlyExits

SHAPE = (1, 8, 8)


@pytest.fixture
def own_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it."""
    monkeypatch.setattr(registry_module, "_registered", {})


specs = st.builds(
    ModelSpec,
    name=st.sampled_from(list(ARCHITECTURES)),
    width=st.sampled_from([1.0, 0.5, 1 / 3, 0.0625]),
    norm=st.sampled_from(["batch", "group", "layer", "none"]),
    stem=st.sampled_from(["auto", "image", "small"]),
    feature_map=st.none() | st.tuples(*[st.integers(1, 64)] * 3),
    head=st.sampled_from([None, "linear", "relu-256", "tanh-768"]),
    dropout=st.none() | st.floats(0, 0.9),
    pool_input=st.none() | st.integers(16, 224),
    upscale_input=st.none() | st.integers(16, 224),
    exits=st.sampled_from([None, (1,), (2, 5)]),
    mean=st.tuples(st.floats(0, 1)) | st.tuples(*[st.floats(0, 1)] * 3),
)


@settings(max_examples=25, deadline=None)
@given(specs)
def test_spec_survives_json(spec: ModelSpec) -> None:
    assert ModelSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_json_holds_only_what_differs() -> None:
    assert ModelSpec("cnn4").to_json() == {"name": "cnn4"}
    spec = ModelSpec("resnet18", width=0.5, feature_map=(4, 2, 2))
    assert spec.to_json() == {"name": "resnet18", "width": 0.5, "feature_map": [4, 2, 2]}


def test_label_and_parse_are_reverse() -> None:
    assert ModelSpec("resnet26").label == "resnet26"
    for spec in (*group("inco-width"), *group("tiny-widths")):
        assert ModelSpec.parse(spec.label) == ModelSpec(spec.name, width=spec.width)
    for spec in group("tiny-exits"):
        assert ModelSpec.parse(spec.label) == spec == ModelSpec.from_json(json.loads(json.dumps(spec.to_json())))


def test_a_spec_with_exits_builds_a_model_that_answers_at_them() -> None:
    model = build("tiny-resnet-wide@0.5:2-4", shape=SHAPE, classes=5)
    assert isinstance(model, EarlyExits) and model.depths == (2, 4)
    assert [
        answer.shape for answer in model.logits(torch.rand(2, *SHAPE, generator=torch.Generator().manual_seed(0)))
    ] == [(2, 5)] * 2
    for wrong in (
        "tiny-resnet-wide:4-2",
        "tiny-resnet-wide:0",
        "tiny-resnet-wide:two",
        "tiny-resnet-wide:7",
        "cnn4:1",
    ):
        with pytest.raises(InputError, match=r"exits|exit after"):
            build(wrong, shape=SHAPE if wrong != "cnn4:1" else (3, 32, 32), classes=5)


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ({"name": "cnn4", "widht": 1.0}, "unknown key 'widht'; did you mean 'width'"),
        ({"width": 1.0}, "has no name"),
        ({"name": "cnn4", "width": "wide"}, "width is 'wide'"),
        ({"name": "cnn4", "width": True}, "width is True"),
        ({"name": "cnn4", "feature_dim": 5.5}, "feature_dim is 5.5"),
        ({"name": "cnn4", "mean": None}, "mean is None"),
        ({"name": "cnn4", "norm": "bach"}, "norm is 'bach'; did you mean 'batch'"),
        ({"name": "cnn4", "stem": "large"}, "stem is 'large'"),
        ({"name": "cnn4", "width": 0}, "width is 0; expected a number above 0"),
        ({"name": "cnn4", "width": float("nan")}, "width is nan; expected a number above 0"),
        ({"name": "cnn4", "dropout": 1.0}, "dropout is 1.0"),
        ({"name": "cnn4", "feature_dim": 0}, "feature_dim is 0"),
        ({"name": "cnn4", "feature_map": [4, 4]}, "feature_map is (4, 4)"),
        ({"name": "cnn4", "feature_map": [4, 4, 4], "feature_dim": 64}, "both set"),
        ({"name": "cnn4", "adapter": "conv_pool"}, "needs feature_map"),
        ({"name": "cnn4", "head": "softmax"}, "Unknown head 'softmax'"),
        ({"name": "cnn4", "pool_input": 0}, "pool_input is 0"),
        ({"name": "cnn4", "upscale_input": 0}, "upscale_input is 0"),
        ({"name": "cnn4", "std": [0.0]}, "std above 0"),
    ],
)
def test_wrong_entries_say_what_is_wrong(entry: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=re.escape(sentence)):
        ModelSpec.from_json(entry)


def test_unknown_names_point_to_the_nearest() -> None:
    with pytest.raises(InputError, match="unknown model 'resnet-18'; did you mean 'resnet18'"):
        build("resnet-18", shape=SHAPE, classes=10)
    with pytest.raises(InputError, match="unknown model group 'tiny5'; did you mean 'tiny4'"):
        group("tiny5")
    with pytest.raises(InputError, match="unknown model 'resnett18'"):
        describe("resnett18")


@pytest.mark.parametrize(
    ("spec", "shape", "classes", "sentence"),
    [
        ("cnn4", (8, 8), 10, "takes images (channels, height, width), but samples have shape (8, 8)"),
        ("cnn4", (0, 32, 32), 10, "the shape of a sample is (0, 32, 32)"),
        ("cnn4", (3, 32, 32), 1, "there are 1 classes; at least 2"),
        ("cnn4@half", (3, 32, 32), 10, "the width after '@' is 'half'"),
        ("cnn4", (1, 8, 8), 10, "'cnn4' takes images of 16x16 pixels or more; these have 8x8"),
        (ModelSpec("cnn4", pool_input=8), (1, 32, 32), 10, "these have 32x32, pooled to 8"),
        (ModelSpec("cnn4", mean=(0.1, 0.2)), (3, 32, 32), 10, "2 values for mean, but images have 3 channels"),
    ],
)
def test_wrong_builds_say_what_is_wrong(spec: Any, shape: Any, classes: int, sentence: str) -> None:
    with pytest.raises(InputError, match=re.escape(sentence)):
        build(spec, shape=shape, classes=classes)


GROUPS = {
    "htfe2": "cnn4 resnet18",
    "htfe3": "resnet10 resnet18 resnet34",
    "htfe4": "cnn4 googlenet mobilenet-v2 resnet18",
    "htfe8": "cnn4 googlenet mobilenet-v2 resnet18 resnet34 resnet50 resnet101 resnet152",
    "htfe9": "resnet4 resnet6 resnet8 resnet10 resnet18 resnet34 resnet50 resnet101 resnet152",
    "htm10": "cnn4 googlenet mobilenet-v2 resnet18 resnet34 resnet50 resnet101 resnet152 vit-b-16 vit-b-32",
    "dffke-1": "resnet18",
    "dffke-2": "resnet18 mobilenet-v3-large",
    "dffke-5": "resnet18 mobilenet-v3-small mobilenet-v3-large shufflenet-v2-x1.5 shufflenet-v2-x2.0",
    "dffke-10": "resnet18 resnet34 resnet50 googlenet efficientnet-v2-s mobilenet-v3-small mobilenet-v3-large "
    "shufflenet-v2-x1.5 shufflenet-v2-x2.0 vit-tiny",
    "fedfree-8": "cnn-fedfree resnet18 resnet34 resnet50 resnet101 resnet152 googlenet mobilenet-v2",
    "fedvtc-5": "resnet18 resnet34 resnet50 resnet101 resnet152",
    "inco-stage": "resnet10 resnet14 resnet18 resnet22 resnet26",
    "inco-layer": "vit-s-8 vit-s-9 vit-s-10 vit-s-11 vit-s-12",
    "inco-width": "resnet26@0.0625 resnet26@0.125 resnet26@0.25 resnet26@0.5 resnet26",
    "htfe8-htc4": "cnn4 googlenet mobilenet-v2 resnet18 resnet34 resnet50 resnet101 resnet152",
    "res34-htc4": "resnet34 resnet34 resnet34 resnet34",
    "tiny4": "tiny-cnn tiny-resnet tiny-mobile tiny-mlp",
    "tiny-resnets": "tiny-resnet10 tiny-resnet14 tiny-resnet18 tiny-resnet22 tiny-resnet26",
    "tiny-resnets3": "tiny-resnet10 tiny-resnet14 tiny-resnet18",
    "tiny-vits": "tiny-vit-2 tiny-vit-3 tiny-vit-4 tiny-vit-5 tiny-vit-6",
    "tiny-widths": "tiny-resnet-wide@0.25 tiny-resnet-wide@0.375 tiny-resnet-wide@0.5 tiny-resnet-wide@0.75 "
    "tiny-resnet-wide",
    "tabular4": "tiny-table-mlp tiny-table-resnet tiny-table-wide tiny-table-transformer",
    "series4": "tiny-series-cnn tiny-series-tcn tiny-series-gru tiny-series-transformer",
    "text4": "tiny-text-bag tiny-text-cnn tiny-text-gru tiny-text-transformer",
    "tiny-exits": "tiny-resnet-wide@0.5:2 tiny-resnet-wide@0.75:2-4 tiny-resnet-wide:2-4-6",
}


def test_group_members_and_their_order() -> None:
    assert {name: " ".join(spec.label for spec in group(name)) for name in group_names()} == GROUPS


def test_group_feature_widths_and_heads() -> None:
    for name in ("htfe2", "htfe3", "htfe4", "htfe8", "htfe9", "htm10", "dffke-5", "dffke-10", "res34-htc4"):
        with torch.device("meta"):
            assert {build(s, shape=(3, 32, 32), classes=10).feature_dim for s in group(name)} == {512}, name
    with torch.device("meta"):
        assert {build(s, shape=SHAPE, classes=10).feature_dim for s in group("tiny4")} == {64}
    heads = [spec.head for spec in group("htfe8-htc4")]
    assert heads == [None, "relu-512", "relu-256", "relu-128"] * 2
    assert [spec.head for spec in group("htm10")[-2:]] == ["tanh-768", "tanh-768"]
    assert model_group("fedfree-8").server == ModelSpec("cnn-fedfree")
    auxiliary = model_group("res34-htc4").auxiliary
    assert auxiliary is not None and auxiliary.name == "cnn4"


def test_papers_groups_keep_the_image_stem_below_32_pixels() -> None:
    with torch.device("meta"):
        paper = build(group("htfe3")[0], shape=(1, 28, 28), classes=10)
        plain = build("resnet10", shape=(1, 28, 28), classes=10)
    assert paper.state_dict()["backbone.trunk.stem.0.conv.weight"].shape == (64, 1, 7, 7)
    assert plain.state_dict()["backbone.trunk.stem.0.conv.weight"].shape == (64, 1, 3, 3)


class Own(nn.Module):
    """A user's network, of which polyfed knows nothing."""

    def __init__(self, pixels: int, classes: int, hidden: int = 12) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(pixels, hidden), nn.ReLU())
        self.out = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.body(x))
        return out


def own_factory(shape: tuple[int, int, int], classes: int, width: float = 1.0) -> nn.Module:
    return Own(shape[0] * shape[1] * shape[2], classes, int(12 * width))


@pytest.mark.usefixtures("own_models")
def test_own_models_are_built_like_any_other() -> None:
    register("own", own_factory, head="out")
    assert names()[-1] == "own"
    model = build("own", shape=SHAPE, classes=7)
    assert isinstance(model, SplitModel)
    assert (model.feature_dim, model.classes) == (12, 7)
    assert build("own@0.5", shape=SHAPE, classes=7).feature_dim == 6
    x = torch.rand(3, *SHAPE, generator=torch.Generator().manual_seed(0))
    wider = build(ModelSpec("own", feature_dim=24, head="relu-5"), shape=SHAPE, classes=7)
    assert wider.features(x).shape == (3, 24) and wider(x).shape == (3, 7)
    # 64*12 + 12 in the body, 12*10 + 10 in the head, at one channel.
    assert describe("own", shape=SHAPE).params == 780 + 130
    assert describe("own", shape=SHAPE).flops == 2 * (64 * 12 + 12 * 10)


@pytest.mark.usefixtures("own_models")
def test_a_factory_gets_only_what_it_has_parameters_for() -> None:
    register("fixed", lambda: Own(64, 10), head="out")
    assert build("fixed", shape=SHAPE, classes=10).feature_dim == 12
    with pytest.raises(InputError, match=r"width is 0\.5, but its factory has no parameter 'width'"):
        build("fixed@0.5", shape=SHAPE, classes=10)
    with pytest.raises(InputError, match="has 10 outputs, but the data has 3 classes"):
        build("fixed", shape=SHAPE, classes=3)
    seen: dict[str, Any] = {}

    def curious(**given: Any) -> nn.Module:
        seen.update(given)
        return build("tiny-cnn", shape=given["shape"], classes=given["classes"])

    register("curious", curious)
    assert build(ModelSpec("curious", norm="group"), shape=SHAPE, classes=3).feature_dim == 64
    assert seen == {"shape": SHAPE, "classes": 3, "width": 1.0, "norm": "group", "vocabulary": None}


@pytest.mark.usefixtures("own_models")
def test_wrong_registrations_say_what_is_wrong() -> None:
    with pytest.raises(InputError, match="Cannot register a model as 'cnn4'"):
        register("cnn4", own_factory)
    with pytest.raises(InputError, match="Cannot register a model as 'own@2'"):
        register("own@2", own_factory)
    register("number", lambda: 3)  # type: ignore[arg-type, return-value]
    with pytest.raises(InputError, match=r"its factory returned a int; expected a torch\.nn\.Module"):
        build("number", shape=SHAPE, classes=10)
    register("module", lambda: Own(64, 10))
    assert build("module", shape=SHAPE, classes=10).head.out_features == 10  # its head is found
    not_callable: Any = "own"
    with pytest.raises(InputError, match="the factory is a str; expected a function"):
        register("text", not_callable)
