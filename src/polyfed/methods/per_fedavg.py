"""Per-FedAvg: personalized federated learning with theoretical guarantees, a model-agnostic meta-learning approach.

Fallah, Mokhtari, Ozdaglar; NeurIPS 2020, Algorithm 1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt
from torch import Tensor, nn

from polyfed.core import Client, Payload, register
from polyfed.core.options import Degenerate
from polyfed.methods.fedavg import FedAvg
from polyfed.training import fit

Task = Callable[[Tensor, Tensor], Tensor]


@register("per-fedavg")
@dataclass(frozen=True)
class PerFedAvg(FedAvg):
    """Per-FedAvg: FedAvg toward a model that becomes a good personal one by a gradient step at each client.

    A step takes one batch of `train.batch_size` for each of D, D' (and D''), so an epoch has half (a third) of
    FedAvg's steps; where a batch is too small to be divided, its samples stand for all of them. A popular library
    makes two passes in a round, ignores beta, and lets its evaluation leak into BatchNorm's statistics; here all that
    an evaluation changes is put back. Evaluated is the server's model after `eval_steps` steps on the client's data.
    With half of FedAvg's steps it is behind it in short runs (digits, Dirichlet 0.1, ten rounds: 32 against 43 %).
    """

    weights: Literal["samples", "uniform"] = "uniform"  # how clients count in the mean (all alike, or by samples)
    alpha: Annotated[float, Ge(0), Degenerate(0)] = 0.01  # step size inside, and of the personal steps
    beta: Annotated[float, Gt(0)] = 0.01  # step size of the meta step; stands for train.lr
    meta_gradient: Literal["FO", "HF"] = "FO"  # without second derivatives, or with them by differences of gradients
    delta: Annotated[float, Gt(0)] = 0.001  # HF: how far the two gradients are apart, in lengths of the gradient
    eval_steps: Annotated[int, Ge(0)] = 1  # gradient steps at a client before it is evaluated
    allow_degenerate: bool = False  # accept alpha 0, which is FedAvg on half of the batches

    def learn(self, client: Client) -> None:
        self.meta_learn(client, client.cross_entropy)

    def meta_learn(self, client: Client, task: Task) -> None:
        roles = 2 if self.meta_gradient == "FO" else 3
        theta = [p for p in client.model.parameters() if p.requires_grad]
        start: list[Tensor] = []
        third: list[tuple[Tensor, Tensor]] = []

        def loss(x: Tensor, y: Tensor) -> Tensor:
            """L(u; D') with u = theta - alpha grad L(theta; D); theta stands at u until the gradient is taken."""
            batches = _divided(x, y, roles, least=2 if client.model.has_batchnorm else 1)
            inner = torch.autograd.grad(task(*batches[0]), theta)
            start[:], third[:] = [p.detach().clone() for p in theta], batches[2:]
            _shift(theta, inner, -self.alpha)
            return task(*batches[1])

        def back_to_theta() -> None:
            """The meta gradient is applied to theta; HF takes alpha H g off it."""
            _set(theta, start)
            if third:
                g = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in theta]
                curved = self.hessian_times(g, theta, start, lambda: task(*third[0]))
                for p, by in zip(theta, curved, strict=True):
                    if p.grad is not None:
                        p.grad -= self.alpha * by

        size = roles * client.settings.batch_size
        client.fit(loss, adjust=back_to_theta, batch_size=size, lr=self.beta)

    def hessian_times(
        self, g: list[Tensor], theta: list[nn.Parameter], start: list[Tensor], task: Callable[[], Tensor]
    ) -> list[Tensor]:
        """H g = (grad L(theta + delta g; D'') - grad L(theta - delta g; D'')) / (2 delta)."""
        ends = []
        for sign in (1, -1):
            _shift(theta, g, sign * self.delta)
            ends.append(torch.autograd.grad(task(), theta))
            _set(theta, start)
        return [(plus - minus) / (2 * self.delta) for plus, minus in zip(*ends, strict=True)]

    def adopt(self, client: Client, msg: Payload) -> None:
        """The personal model; what this changes is undone after an evaluation."""
        self.receive(client, msg)
        if not self.alpha or not self.eval_steps:
            return
        settings = dataclasses.replace(
            client.settings, steps=self.eval_steps, lr=self.alpha, optimizer="sgd", momentum=0.0, weight_decay=0.0
        )
        fit([client.model], client.cross_entropy, client.train, settings, client.stream("personal steps"))

    def predicts_from_published(self) -> bool:
        return False


def _divided(x: Tensor, y: Tensor, roles: int, least: int) -> list[tuple[Tensor, Tensor]]:
    """D, D' (and D''): a batch in equal parts, or as a whole for all where parts would be too small."""
    if len(y) < roles * least:
        return [(x, y)] * roles
    return list(zip(x.tensor_split(roles), y.tensor_split(roles), strict=True))


@torch.no_grad()
def _shift(theta: list[nn.Parameter], by: tuple[Tensor, ...] | list[Tensor], times: float) -> None:
    for p, along in zip(theta, by, strict=True):
        p.add_(along, alpha=times)


@torch.no_grad()
def _set(theta: list[nn.Parameter], values: list[Tensor]) -> None:
    for p, value in zip(theta, values, strict=True):
        p.copy_(value)
