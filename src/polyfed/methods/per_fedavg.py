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
    """Per-FedAvg: FedAvg for a model that adapts to each client within one gradient step (MAML).

    A step uses one batch of `train.batch_size` for each of D, D' (and D''), so an epoch has half (a third) of the
    steps of FedAvg. A batch that is too small to be split is used for all of them. A popular library makes two passes
    per round, ignores beta, and lets evaluation change BatchNorm statistics; here evaluation changes nothing. Clients
    are measured with the server's model after `eval_steps` steps on their own data, as in the paper. With half of the
    steps, short runs end below FedAvg.
    """

    weights: Literal["samples", "uniform"] = "uniform"  # weights of clients in the mean: equal, or by samples
    alpha: Annotated[float, Ge(0), Degenerate(0)] = 0.01  # step size of the inner step and of adaptation
    beta: Annotated[float, Gt(0)] | None = None  # step size of the meta update; none: train.lr
    meta_gradient: Literal["FO", "HF"] = "FO"  # first-order, or Hessian-free with gradient differences
    delta: Annotated[float, Gt(0)] = 0.001  # HF: step of the gradient difference, relative to the gradient
    eval_steps: Annotated[int, Ge(0)] = 1  # adaptation steps of a client before evaluation
    allow_degenerate: bool = False  # accept alpha 0, which is FedAvg with half of the steps

    verdict = "Adapts one common model to each client by a gradient step; needs more rounds than FedAvg."

    def learn(self, client: Client) -> None:
        self.meta_learn(client, client.cross_entropy)

    def meta_learn(self, client: Client, task: Task) -> None:
        roles = 2 if self.meta_gradient == "FO" else 3
        theta = [p for p in client.model.parameters() if p.requires_grad]
        start: list[Tensor] = []
        third: list[tuple[Tensor, Tensor]] = []

        def loss(x: Tensor, y: Tensor) -> Tensor:
            """Return L(u; D') with u = theta - alpha grad L(theta; D); parameters stay at u for the backward pass."""
            batches = _split(x, y, roles, minimum=2 if client.model.has_batchnorm else 1)
            inner = torch.autograd.grad(task(*batches[0]), theta)
            start[:], third[:] = [p.detach().clone() for p in theta], batches[2:]
            _shift(theta, inner, -self.alpha)
            return task(*batches[1])

        def back_to_theta() -> None:
            """Restore theta before the step; HF subtracts alpha H g from the meta gradient."""
            _set(theta, start)
            if third:
                g = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in theta]
                products = self.hessian_times(g, theta, start, lambda: task(*third[0]))
                for p, product in zip(theta, products, strict=True):
                    if p.grad is not None:
                        p.grad -= self.alpha * product

        size = roles * client.settings.batch_size
        lr = client.settings.lr if self.beta is None else self.beta
        client.fit(loss, adjust=back_to_theta, batch_size=size, lr=lr)

    def hessian_times(
        self, g: list[Tensor], theta: list[nn.Parameter], start: list[Tensor], task: Callable[[], Tensor]
    ) -> list[Tensor]:
        """Return H g = (grad L(theta + delta g; D'') - grad L(theta - delta g; D'')) / (2 delta)."""
        gradients = []
        for sign in (1, -1):
            _shift(theta, g, sign * self.delta)
            gradients.append(torch.autograd.grad(task(), theta))
            _set(theta, start)
        return [(plus - minus) / (2 * self.delta) for plus, minus in zip(*gradients, strict=True)]

    def adopt(self, client: Client, msg: Payload) -> None:
        """Load the server's model and adapt it to the client. The change is undone after the evaluation."""
        self.receive(client, msg)
        if not self.alpha or not self.eval_steps:
            return
        settings = dataclasses.replace(
            client.settings, steps=self.eval_steps, lr=self.alpha, optimizer="sgd", momentum=0.0, weight_decay=0.0
        )
        fit([client.model], client.cross_entropy, client.train, settings, client.stream("personal steps"))

    def predicts_from_published(self) -> bool:
        return False


def _split(x: Tensor, y: Tensor, roles: int, minimum: int) -> list[tuple[Tensor, Tensor]]:
    """Return D, D' (and D''): equal parts of a batch, or the whole batch for each if parts would be too small."""
    if len(y) < roles * minimum:
        return [(x, y)] * roles
    return list(zip(x.tensor_split(roles), y.tensor_split(roles), strict=True))


@torch.no_grad()
def _shift(theta: list[nn.Parameter], directions: tuple[Tensor, ...] | list[Tensor], scale: float) -> None:
    for p, direction in zip(theta, directions, strict=True):
        p.add_(direction, alpha=scale)


@torch.no_grad()
def _set(theta: list[nn.Parameter], values: list[Tensor]) -> None:
    for p, value in zip(theta, values, strict=True):
        p.copy_(value)
