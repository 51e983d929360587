"""The gradient of the quiz loss for the guiding vectors, through one pseudo-training step (Eq. 5 to 7).

The step leads from theta to theta' = theta - lr grad (CE + weight MSE(out, v_y)) on a study batch of B samples, with
outputs of M numbers. With u the gradient of the quiz loss at theta', and J_n the Jacobian of sample n's output at
theta, the gradient for the vector of class y is exactly

    pi_y = weight 2 lr / (M B) sum over n with y_n = y of J_n u

It takes two ordinary backward passes and one Jacobian-vector product. Eq. 8 and 9 of the paper omit 1 / (M B).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm

Batch = tuple[Tensor, Tensor]
Outputs = Callable[[Tensor], tuple[Tensor, Tensor]]  # images to (guided outputs, logits)
Weights = Sequence[Tensor]
JacobianProduct = Literal["jvp", "finite_diff"]

RADIUS = 1e-5  # of finite differences, relative to the norm of the weights; more is inaccurate on deep networks


def study_loss(guided: Tensor, logits: Tensor, labels: Tensor, vectors: Tensor, weight: float) -> Tensor:
    """Return the cross-entropy plus the mean squared error between outputs and their guiding vectors (Eq. 4)."""
    return F.cross_entropy(logits, labels) + weight * F.mse_loss(guided, vectors[labels])


def guidance_gradient(
    model: nn.Module,
    outputs: Outputs,
    vectors: Tensor,
    study: Batch,
    quiz: Batch,
    *,
    lr: float,
    weight: float = 1.0,
    product: JacobianProduct = "jvp",
) -> Tensor:
    """Return the gradient of the quiz loss for `vectors` (classes, M).

    It is exactly 0 for classes that the study batch does not contain. `outputs` calls `model`. The model and its
    buffers do not change. Dropout is off: two passes over the study batch must agree.
    """
    study_x, study_y = study
    run = _FunctionalModel(model, outputs)
    theta = run.weights

    def study_outputs(weights: Weights) -> tuple[Tensor, Tensor]:
        return run(weights, study_x, batch_statistics=len(study_y) > 1)

    def quiz_loss(weights: Weights) -> Tensor:
        return F.cross_entropy(run(weights, quiz[0], batch_statistics=len(quiz[1]) > 1)[1], quiz[1])

    # Fused attention kernels have no forward-mode derivative.
    with sdpa_kernel(SDPBackend.MATH):
        step = _gradients(study_loss(*study_outputs(theta), study_y, vectors, weight), theta)
        ahead = [torch.sub(p.detach(), g, alpha=lr).requires_grad_() for p, g in zip(theta, step, strict=True)]
        u = _gradients(quiz_loss(ahead), ahead)
        jacobian_product = _forward_mode_product if product == "jvp" else _finite_difference_product
        change = jacobian_product(lambda weights: study_outputs(weights)[0], theta, u)  # J_n u for every n
    pi = torch.zeros_like(vectors).index_add_(0, study_y, change)
    return pi * (2 * lr * weight / change.numel())  # numel is B M


# torch gives these two no types
make_dual: Callable[[Tensor, Tensor], Tensor] = forward_ad.make_dual
unpack_dual: Callable[[Tensor], tuple[Tensor, Tensor | None]] = forward_ad.unpack_dual


def _forward_mode_product(out: Callable[[Weights], Tensor], theta: Weights, u: Weights) -> Tensor:
    """Compute J u by forward-mode differentiation, in one pass."""
    with forward_ad.dual_level():
        duals = [make_dual(p.detach(), direction) for p, direction in zip(theta, u, strict=True)]
        value, change = unpack_dual(out(duals))
        return torch.zeros_like(value) if change is None else change


@torch.no_grad()
def _finite_difference_product(out: Callable[[Weights], Tensor], theta: Weights, u: Weights) -> Tensor:
    """Compute J u by central differences, in two passes without a graph."""
    r = RADIUS * _norm(theta) / max(_norm(u), 1e-12)
    plus, minus = (out([p + step * d for p, d in zip(theta, u, strict=True)]) for step in (r, -r))
    return (plus - minus) / (2 * r)


def _norm(weights: Weights) -> float:
    return float(torch.stack([tensor.norm() for tensor in weights]).norm())


def _gradients(loss: Tensor, weights: Weights) -> Sequence[Tensor]:
    return torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True)


class _FunctionalModel:
    """A model that runs with given weights, on copies of its buffers and without dropout.

    `torch.func.functional_call` does the same, but walks through all modules on every call. For a small model that
    takes as long as its forward pass.
    """

    def __init__(self, model: nn.Module, outputs: Outputs) -> None:
        self._outputs = outputs
        self._modules = list(model.modules())
        owned: list[tuple[dict[str, Any], str, nn.Parameter]] = [
            (module._parameters, name, p)
            for module in self._modules
            for name, p in module._parameters.items()
            if p is not None
        ]
        trainable = {id(p): p for _, _, p in owned if p.requires_grad}
        self.weights: Weights = list(trainable.values())
        numbers = {key: k for k, key in enumerate(trainable)}
        # a weight that two layers share is one weight with two owners
        self._owners = [(owner, name, numbers[id(p)]) for owner, name, p in owned if id(p) in numbers]
        self._buffers: list[tuple[dict[str, Any], str]] = [
            (module._buffers, name) for module in self._modules for name in module._buffers
        ]

    def __call__(self, weights: Weights, x: Tensor, *, batch_statistics: bool) -> tuple[Tensor, Tensor]:
        """Return the outputs for x. BatchNorm uses the statistics of the batch, or its running statistics."""
        buffers = [owner[name] for owner, name in self._buffers]
        modes = [module.training for module in self._modules]
        try:
            for owner, name, number in self._owners:
                owner[name] = weights[number]
            for (owner, name), buffer in zip(self._buffers, buffers, strict=True):
                owner[name] = None if buffer is None else buffer.clone()
            for module in self._modules:
                module.training = batch_statistics and isinstance(module, _BatchNorm)
            return self._outputs(x)
        finally:
            for owner, name, number in self._owners:
                owner[name] = self.weights[number]
            for (owner, name), buffer in zip(self._buffers, buffers, strict=True):
                owner[name] = buffer
            for module, mode in zip(self._modules, modes, strict=True):
                module.training = mode
