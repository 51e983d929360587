"""Modules, tensors and modes of a model, compared with the methods of `nn.Module`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from polyfed.models import SplitModel, build
from polyfed.models.module_parts import modules_of, parameters_of, set_mode, tensors_of


class Frozen(nn.BatchNorm1d):
    """A norm that stays in evaluation mode."""

    def train(self, mode: bool = True) -> Frozen:
        super().train(False)
        return self


class Hidden(nn.Module):
    """A module that hides a part of itself: from modes and from the list of modules."""

    def __init__(self) -> None:
        super().__init__()
        self.seen, self.unseen = nn.Linear(4, 4), nn.Linear(4, 4)

    def children(self) -> Iterator[nn.Module]:
        return iter([self.seen])

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        return iter([(prefix, self), (f"{prefix}.seen", self.seen)])

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.seen(x)
        return out


def frozen_by_attribute() -> nn.Module:
    """Return a norm that stays in evaluation mode because `train` of this object was replaced."""
    norm = nn.BatchNorm1d(4).eval()
    norm.train = lambda mode=True: norm  # type: ignore[method-assign]
    return norm


class Tied(nn.Module):
    """Two layers with one weight, a module that is used twice, a missing module, and a norm with its own `train`."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.again = self.first
        self.register_module("missing", None)
        self.norm = nn.Sequential(Frozen(4), frozen_by_attribute(), Hidden(), nn.Dropout())

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(self.again(self.second(self.first(x))))
        return out


def models() -> list[SplitModel]:
    named = [build(name, shape=(1, 8, 8), classes=3) for name in ("tiny-resnet", "tiny-vit-2")]
    return [*named, SplitModel(Tied(), nn.Linear(4, 3), feature_dim=4, classes=3)]


@pytest.mark.parametrize("model", models())
def test_modules_and_parameters_are_those_of_torch(model: SplitModel) -> None:
    modules = list(nn.Module.modules(model))
    assert [id(m) for m in modules_of(model)] == [id(m) for m in model.modules()] == [id(m) for m in modules]
    duplicated = [id(m) for _, m in model.named_modules(remove_duplicate=False)]
    assert [id(m) for m in model.modules(remove_duplicate=False)] == duplicated
    parameters = [id(p) for p in nn.Module.parameters(model)]
    assert [id(p) for p in parameters_of(modules)] == [id(p) for p in model.parameters()] == parameters
    assert list(model.parameters(recurse=False)) == []
    tensors = {id(t) for t in (*nn.Module.parameters(model), *model.buffers())}
    assert {id(t) for t in tensors_of(modules)} == tensors


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("model", models())
def test_modes_are_those_of_torch(model: SplitModel, training: bool) -> None:
    def modes() -> list[bool]:
        return [module.training for module in model.modules()]

    nn.Module.train(model, not training)
    before = modes()
    nn.Module.train(model, training)
    expected = modes()
    assert expected != before
    for change in (lambda: model.train(training), lambda: set_mode(model, training=training)):
        nn.Module.train(model, not training)
        change()
        assert modes() == expected
    assert model.eval() is model and model.train() is model
    with pytest.raises(ValueError, match="boolean"):
        model.train("yes")  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")
def test_scripted_modules_change_their_mode() -> None:
    scripted = torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.Dropout()))
    for training in (False, True):
        set_mode(scripted, training=training)
        assert [module.training for module in scripted.modules()] == [training] * 3
