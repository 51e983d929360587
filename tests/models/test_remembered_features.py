"""Features that are remembered while a batch is evaluated in several ways."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call

from polyfed.models.split import SplitModel


class CountingBackbone(nn.Module):
    """A linear layer with BatchNorm that counts its forward passes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.passes = nn.Linear(3, 4), nn.BatchNorm1d(4), 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        z: Tensor = self.norm(self.layer(x))
        return z


def new_model() -> tuple[SplitModel, CountingBackbone]:
    torch.manual_seed(0)
    backbone = CountingBackbone()
    return SplitModel(backbone, nn.Linear(4, 2), feature_dim=4, classes=2).eval(), backbone


@torch.no_grad()
def test_a_batch_is_computed_once() -> None:
    model, backbone = new_model()
    x = torch.randn(5, 3)
    with model.remembered_features():
        features, logits = model.features(x), model(x)
        assert backbone.passes == 1
        assert torch.equal(logits, model.head(features))
        model.features(x.clone())
        assert backbone.passes == 2
    model.features(x)
    assert backbone.passes == 3


@torch.no_grad()
def test_other_weights_and_modes_are_computed_again() -> None:
    model, backbone = new_model()
    x = torch.randn(5, 3)
    other = {name: tensor + 1 for name, tensor in model.state_dict().items()}
    with model.remembered_features():
        before = model.features(x)
        assert not torch.equal(functional_call(model, other, (x,)), model(x))  # replaced for one call
        assert torch.equal(model.features(x), before)
        model.train()
        assert not torch.equal(model.features(x), before)
        model.eval()
        backbone.layer.weight.mul_(2)
        changed = model.features(x)
        assert not torch.equal(changed, before)
    assert torch.equal(model.features(x), changed)
