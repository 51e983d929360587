"""A reference for FedL2G's gradient: autograd through the pseudo-training step, on models in double precision."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from polyfed.core import rng
from polyfed.methods.fedl2g.guidance_gradient import Batch
from polyfed.models import ModelSpec, SplitModel, build

Space = Literal["logit", "feature"]
SPACES: tuple[Space, ...] = ("logit", "feature")


class PlainHardsigmoid(nn.Module):
    """Hardsigmoid with a second derivative, which torch's own lacks."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu6(x + 3) / 6


def double_model(name: str, side: int = 8, classes: int = 4) -> SplitModel:
    """Build a model in double precision; large ones at an eighth of their width."""
    spec = ModelSpec(name, width=1.0 if name.startswith("tiny-") else 0.125)
    with rng.seeded("model", name):
        model = build(spec, shape=(1, side, side), classes=classes).double()
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Hardsigmoid):
                setattr(module, name, PlainHardsigmoid())
    return model.train()


class GuidedOutputs(nn.Module):
    """Returns the guided outputs and the logits of a model."""

    def __init__(self, model: SplitModel, space: Space) -> None:
        super().__init__()
        self.model, self.space = model, space

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        f = self.model.features(x)
        z = self.model.head(f)
        return (z if self.space == "logit" else f), z


def run(outputs: GuidedOutputs, weights: Mapping[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """Run a copy with the given weights: without dropout, and with batch statistics if there are two samples."""
    other = copy.deepcopy(outputs).eval()
    for module in other.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.train(len(x) > 1)
    guided, logits = functional_call(other, dict(weights), (x,))
    return guided, logits


def quiz_loss(
    model: SplitModel, space: Space, v: Tensor, study: Batch, quiz: Batch, lr: float, smooth: float = 0
) -> Tensor:
    """Return the quiz loss after pseudo-training (Eq. 5) as a differentiable function of the vectors."""
    outputs = GuidedOutputs(model, space)
    theta: dict[str, Tensor] = dict(outputs.named_parameters())
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        guided, z = run(outputs, theta, study[0])
        loss = F.cross_entropy(z, study[1], label_smoothing=smooth) + ((guided - v[study[1]]) ** 2).mean()
        step = torch.autograd.grad(loss, list(theta.values()), create_graph=True, materialize_grads=True)
        ahead = {name: p - lr * g for (name, p), g in zip(theta.items(), step, strict=True)}
        return F.cross_entropy(run(outputs, ahead, quiz[0])[1], quiz[1])


def gradient_by_autograd(model: SplitModel, space: Space, v: Tensor, study: Batch, quiz: Batch, lr: float) -> Tensor:
    v = v.clone().requires_grad_()
    return torch.autograd.grad(quiz_loss(model, space, v, study, quiz, lr), v)[0]
