"""Models that are copied from a template: they have the weights of new models, and share nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.tiers import always_if
from torch import Tensor, nn

from polyfed.core import rng
from polyfed.models import ModelSpec, SplitModel, templates
from polyfed.models.catalogue import ARCHITECTURES
from polyfed.models.module_parts import tensors_of
from polyfed.models.registry import build
from polyfed.models.templates import BUILT_FIRST, ModelTemplate, build_channels_last

RECURRENT = {name for name in ARCHITECTURES if name.endswith("-gru")}  # their modules keep lists of their weights


def constructor_of(name: str) -> Callable[[], SplitModel]:
    architecture, spec = ARCHITECTURES[name], ModelSpec.parse(name)
    side = max(16, architecture.smallest)
    shape = {"table": (6,), "series": (2, 16), "text": (8,)}.get(architecture.takes, (2, side, side))
    if architecture.takes == "text":
        spec = dataclasses.replace(spec, vocabulary=20)

    def constructor() -> SplitModel:
        model = build(spec, shape=shape, classes=3)
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return model

    return constructor


def state_of(model: SplitModel) -> dict[str, tuple[Tensor, tuple[int, ...], bool]]:
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {name: (tensor, tensor.stride(), tensor.requires_grad) for name, tensor in tensors.items()}


def assert_same(model: SplitModel, other: SplitModel) -> None:
    """Assert that two models have the same modules, weights and memory layouts."""
    assert str(model) == str(other)
    assert list(model.state_dict()) == list(other.state_dict())
    states = state_of(model), state_of(other)
    assert list(states[0]) == list(states[1])
    for one, two in zip(states[0].values(), states[1].values(), strict=True):
        assert torch.equal(one[0], two[0]) and one[0].dtype == two[0].dtype and one[1:] == two[1:]


SMALL = [pytest.param(name, marks=always_if(name.startswith("tiny-"))) for name in ARCHITECTURES]


@pytest.mark.parametrize("name", SMALL)
def test_copies_have_the_weights_that_constructors_compute(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "LARGEST", 10**9)
    monkeypatch.setattr(templates, "BUILT_FIRST", 1)
    constructor = constructor_of(name)
    template = ModelTemplate(constructor)
    for number in range(3):  # the second and the third model are copies
        with rng.seeded("template", number):
            model, after = template.make(), torch.default_generator.get_state()
        with rng.seeded("template", number):
            expected, expected_after = constructor(), torch.default_generator.get_state()
        assert_same(model, expected)
        assert torch.equal(after, expected_after)
    assert template.copies == (name not in RECURRENT)


def test_copies_share_nothing() -> None:
    template = ModelTemplate(constructor_of("tiny-resnet"))
    models = [template.make() for _ in range(BUILT_FIRST + 2)]
    memory = [{t.untyped_storage().data_ptr() for t in tensors_of(model.modules())} for model in models]
    modules = [{id(module) for module in model.modules()} for model in models]
    for parts in (memory, modules):
        assert len(set.union(*parts)) == sum(map(len, parts)) > 4
    with rng.seeded("shares"):
        before = template.make()
    for model in models:  # whatever happens to a copy
        model.backbone.get_submodule("trunk").register_forward_hook(lambda *_: None)
        model.backbone.add_module("more", nn.Linear(2, 2))
        with torch.no_grad():
            for tensor in tensors_of(model.modules()):
                tensor.add_(1)
        model.eval().requires_grad_(False)
    with rng.seeded("shares"):
        assert_same(template.make(), before)


def test_copies_train_like_models_of_the_constructor() -> None:
    template = ModelTemplate(constructor_of("tiny-mobile"))
    x, y = torch.rand(6, 2, 16, 16), torch.tensor([0, 1, 2, 0, 1, 2])
    weights = []
    for make in (*[template.make] * (BUILT_FIRST + 1), constructor_of("tiny-mobile")):
        with rng.seeded("train"):
            model = make()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        weights.append(torch.cat([t.detach().flatten().double() for t in model.state_dict().values()]))
    assert template.copies
    assert all(torch.equal(own, weights[-1]) for own in weights)


def test_large_models_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "LARGEST", 100)
    template = ModelTemplate(constructor_of("tiny-mlp"))
    for _ in range(BUILT_FIRST + 1):
        template.make()
    assert not template.copies


class Tied(nn.Module):
    """One weight in two layers, and constants."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.register_buffer("scale", torch.full((3,), 2.0))


class Half(nn.Module):
    """A weight of which only a part is random."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, 4))
        with torch.no_grad():
            self.weight[:2].normal_()


class Joined(nn.Module):
    """A weight that is joined from a list of random tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.cat([torch.randn(2, 3), torch.randn(1, 3)]))


class Listed(nn.Module):
    """A module with a list of a tensor of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.weights = [self.layer.weight]


class Closure(nn.Module):
    """A module with a function that refers to a part of it."""

    def __init__(self) -> None:
        super().__init__()
        layer = self.layer = nn.Linear(3, 3)
        self.function = lambda x: layer(x)


class Defaults(nn.Module):
    """A module with a function that has a part of it as a default."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

        def function(x: Tensor, layer: nn.Module = self.layer) -> object:
            return layer(x)

        self.function = function


class Nested(nn.Module):
    """A module with a container in a container."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.table = nn.Linear(3, 3), {"a": [1, 2]}


class Marked(nn.Module):
    """A weight with an attribute of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))
        self.weight.decay = 0.1  # type: ignore[attr-defined]


class Added(nn.Module):
    """A random number is added to constants."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4).add_(torch.randn(4)))


class Orthogonal(nn.Module):
    """A weight from an operation with several results."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(4, 4))
        nn.init.orthogonal_(self.weight)


class Number(nn.Module):
    """A constant weight from a random number."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), torch.rand(1).item()))


class OwnGenerator(nn.Module):
    """Random values that do not come from torch's default generator."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([random.random()]))


class Drawn(nn.Module):
    """A weight from a new random tensor, which further operations change."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4) * 0.5)
        self.register_buffer("order", torch.randperm(5))
        with torch.no_grad():
            self.weight[0].zero_()


INDEPENDENT = (Tied, Drawn)
OTHERS = (Half, Joined, Listed, Closure, Defaults, Nested, Marked, Added, Orthogonal, Number)


@pytest.mark.parametrize("kind", [*INDEPENDENT, *OTHERS])
def test_what_cannot_be_repeated_or_copied_is_built(kind: type[nn.Module]) -> None:
    def constructor() -> SplitModel:
        return SplitModel(kind(), nn.Linear(3, 2), feature_dim=3, classes=2)

    template = ModelTemplate(constructor)
    for number in range(BUILT_FIRST + 2):
        with rng.seeded("kinds", number):
            model = template.make()
        with rng.seeded("kinds", number):
            assert_same(model, constructor())
        if kind is Tied:
            assert model.backbone.get_submodule("first").weight is model.backbone.get_submodule("second").weight
    assert template.copies == (kind in INDEPENDENT)


def test_other_random_numbers_than_those_of_torch_are_not_repeated() -> None:
    template = ModelTemplate(lambda: SplitModel(OwnGenerator(), nn.Linear(3, 2), feature_dim=3, classes=2))
    for _ in range(BUILT_FIRST + 1):
        template.make()
    assert not template.copies


def test_own_models_of_users_are_always_built(monkeypatch: pytest.MonkeyPatch) -> None:
    from polyfed.models import registry

    built = []

    def own(shape: tuple[int, ...], classes: int) -> nn.Module:
        built.append(shape)
        return nn.Sequential(nn.Flatten(), nn.Linear(4, classes))

    monkeypatch.setitem(registry._registered, "own-linear", registry.OwnModel(own, None))
    for _ in range(BUILT_FIRST + 1):
        build_channels_last(ModelSpec.parse("own-linear"), shape=(1, 2, 2), classes=3)
    assert len(built) >= BUILT_FIRST + 1


@contextlib.contextmanager
def double_precision() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("context", [torch.inference_mode, double_precision, lambda: torch.device("meta")])
def test_unusual_tensors_come_from_constructors(context: Callable[[], Any]) -> None:
    spec = ModelSpec.parse("tiny-mlp")
    for _ in range(BUILT_FIRST + 1):
        with context():
            model = build_channels_last(spec, shape=(1, 5, 5), classes=3)
            expected = build(spec, shape=(1, 5, 5), classes=3)
        weight, other = model.head.weight, expected.head.weight
        assert isinstance(weight, Tensor) and isinstance(other, Tensor)
        assert (weight.device, weight.dtype, weight.is_inference()) == (
            other.device,
            other.dtype,
            other.is_inference(),
        )
    usual = build_channels_last(spec, shape=(1, 5, 5), classes=3).head.weight
    assert isinstance(usual, Tensor) and usual.is_cpu and usual.dtype == torch.float32 and not usual.is_inference()


def test_a_recording_does_not_change_later_random_numbers() -> None:
    template, constructor = ModelTemplate(constructor_of("tiny-mlp")), constructor_of("tiny-mlp")
    with rng.seeded("later"):
        for _ in range(BUILT_FIRST + 2):
            template.make()
        number = torch.rand(1)
    with rng.seeded("later"):
        for _ in range(BUILT_FIRST + 2):
            constructor()
        assert torch.equal(number, torch.rand(1))
