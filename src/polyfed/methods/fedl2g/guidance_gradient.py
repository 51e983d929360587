"""How the loss on a quiz, after one step of gradient descent, depends on the vectors outputs are pulled to in it.

The step goes from theta to theta' = theta - lr grad (CE + weight MSE(out, v_y)) on a study batch of B samples, with
outputs of M numbers. With u the gradient of the quiz loss at theta', and J_n the Jacobian of sample n's output at
theta, the gradient for the vector of class y is, exactly,

    pi_y = weight 2 lr / (M B) sum over n with y_n = y of J_n u

so that what is left after two ordinary backward passes is one Jacobian-vector product.
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
Outputs = Callable[[Tensor], tuple[Tensor, Tensor]]  # images to (what is guided, logits)
Weights = Sequence[Tensor]
Way = Literal["jvp", "double_backward", "finite_diff"]
Norms = Literal["auto", "eval"]  # BatchNorm by the batch where it has two samples or more, or by running statistics

RADIUS = 1e-5  # of finite differences, as a share of the norm of the weights; 1e-3 is off by a third on deep networks


def study_loss(guided: Tensor, logits: Tensor, labels: Tensor, vectors: Tensor, weight: float) -> Tensor:
    """Cross-entropy, and the mean square between each output and the vector of its class."""
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
    way: Way = "jvp",
    quiz_norms: Norms = "auto",
) -> Tensor:
    """The gradient of the quiz loss for `vectors` (classes, M); exactly 0 for classes that the study batch lacks.

    `outputs` calls `model`. The model stays as it is, with its buffers; dropout is off, for it would make the two
    passes over the study batch differ.
    """
    study_x, study_y = study
    at = _At(model, outputs)
    theta = at.weights

    def on_study(weights: Weights) -> tuple[Tensor, Tensor]:
        return at(weights, study_x, by_batch=len(study_y) > 1)

    def quiz_loss(weights: Weights) -> Tensor:
        by_batch = quiz_norms == "auto" and len(quiz[1]) > 1
        return F.cross_entropy(at(weights, quiz[0], by_batch=by_batch)[1], quiz[1])

    # Fused attention has no forward-mode derivative, nor a second one.
    with sdpa_kernel(SDPBackend.MATH):
        if way == "double_backward":
            v = vectors.detach().requires_grad_()
            step = _gradients(study_loss(*on_study(theta), study_y, v, weight), theta, create_graph=True)
            loss = quiz_loss([p - lr * g for p, g in zip(theta, step, strict=True)])
            return torch.autograd.grad(loss, v, allow_unused=True, materialize_grads=True)[0]
        step = _gradients(study_loss(*on_study(theta), study_y, vectors, weight), theta)
        ahead = [torch.sub(p.detach(), g, alpha=lr).requires_grad_() for p, g in zip(theta, step, strict=True)]
        u = _gradients(quiz_loss(ahead), ahead)
        product = _forward_product if way == "jvp" else _difference_product
        change = product(lambda weights: on_study(weights)[0], theta, u)  # J_n u for every n
    pi = torch.zeros_like(vectors).index_add_(0, study_y, change)
    return pi * (2 * lr * weight / change.numel())  # numel is B M


# torch gives these two no types
make_dual: Callable[[Tensor, Tensor], Tensor] = forward_ad.make_dual
unpack_dual: Callable[[Tensor], tuple[Tensor, Tensor | None]] = forward_ad.unpack_dual


def _forward_product(out: Callable[[Weights], Tensor], theta: Weights, u: Weights) -> Tensor:
    """J u by forward-mode differentiation: one pass."""
    with forward_ad.dual_level():
        duals = [make_dual(p.detach(), direction) for p, direction in zip(theta, u, strict=True)]
        value, change = unpack_dual(out(duals))
        return torch.zeros_like(value) if change is None else change


@torch.no_grad()
def _difference_product(out: Callable[[Weights], Tensor], theta: Weights, u: Weights) -> Tensor:
    """J u by central differences: two passes, no graph at all."""
    r = RADIUS * _norm(theta) / max(_norm(u), 1e-12)
    plus, minus = (out([p + way * d for p, d in zip(theta, u, strict=True)]) for way in (r, -r))
    return (plus - minus) / (2 * r)


def _norm(weights: Weights) -> float:
    return float(torch.stack([tensor.norm() for tensor in weights]).norm())


def _gradients(loss: Tensor, weights: Weights, *, create_graph: bool = False) -> Sequence[Tensor]:
    return torch.autograd.grad(loss, weights, create_graph=create_graph, allow_unused=True, materialize_grads=True)


class _At:
    """Runs a model at weights that are handed in, on copies of its buffers and without dropout.

    `torch.func.functional_call` does as much, but walks through all modules anew each time, which costs a small
    model as much as its forward pass.
    """

    def __init__(self, model: nn.Module, outputs: Outputs) -> None:
        self._outputs = outputs
        self._parts = list(model.modules())
        held: list[tuple[dict[str, Any], str, nn.Parameter]] = [
            (part._parameters, name, p)
            for part in self._parts
            for name, p in part._parameters.items()
            if p is not None
        ]
        learnt = {id(p): p for _, _, p in held if p.requires_grad}
        self.weights: Weights = list(learnt.values())
        numbers = {number: k for k, number in enumerate(learnt)}
        # where each weight is held; a weight that two layers share is one weight in two places
        self._places = [(where, name, numbers[id(p)]) for where, name, p in held if id(p) in numbers]
        self._buffers: list[tuple[dict[str, Any], str]] = [
            (part._buffers, name) for part in self._parts for name in part._buffers
        ]

    def __call__(self, weights: Weights, x: Tensor, *, by_batch: bool) -> tuple[Tensor, Tensor]:
        """The outputs for x; BatchNorm goes by the batch, or by its running statistics."""
        own_buffers = [where[name] for where, name in self._buffers]
        own_modes = [part.training for part in self._parts]
        try:
            for where, name, number in self._places:
                where[name] = weights[number]
            for (where, name), buffer in zip(self._buffers, own_buffers, strict=True):
                where[name] = None if buffer is None else buffer.clone()
            for part in self._parts:
                part.training = by_batch and isinstance(part, _BatchNorm)
            return self._outputs(x)
        finally:
            for where, name, number in self._places:
                where[name] = self.weights[number]
            for (where, name), buffer in zip(self._buffers, own_buffers, strict=True):
                where[name] = buffer
            for part, mode in zip(self._parts, own_modes, strict=True):
                part.training = mode
