"""FedProx: federated optimization in heterogeneous networks.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith; MLSys 2020, Algorithm 2.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor

from polyfed.core import Client, Server, register
from polyfed.core.options import Degenerate
from polyfed.errors import InputError
from polyfed.methods.fedavg import FedAvg


@register("fedprox")
@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedProx: FedAvg with a proximal term that keeps clients near the received model.

    The term is (mu/2) ||theta - theta^t||^2 over parameters, without BatchNorm statistics. Papers that print the
    coefficient mu/2 as their hyperparameter use half of this `mu`: 0.05 in InCo is 0.1 here. A popular library
    defaults to 0, which is FedAvg; here 0 raises `InputError`. With Adam the proximal gradient is rescaled like every
    gradient, which is not the algorithm that the paper analyses. Clients are measured with the server's new model.
    """

    mu: Annotated[float, Ge(0), Degenerate(0)] = 0.01  # weight of the proximal term; gradient: mu (theta - theta^t)
    epochs: list[Annotated[int, Ge(0)]] | None = None  # epochs of each client, in client order; none: train.epochs
    allow_degenerate: bool = False  # accept mu 0, which is FedAvg

    verdict = "FedAvg that limits client drift; differences from FedAvg are small here."

    def init(self, server: Server) -> None:
        if self.epochs is not None and len(self.epochs) != len(server.roster):
            raise InputError(f"method.epochs has {len(self.epochs)} entries for {len(server.roster)} clients")
        super().init(server)

    def learn(self, client: Client) -> None:
        theta = list(client.model.parameters())
        received = [parameter.detach().clone() for parameter in theta]  # theta^t

        def loss(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
            task = F.cross_entropy(client.model(x), y)
            return (task, self.mu / 2 * squared_distance(theta, received)) if self.mu else (task,)

        if self.epochs is None:
            client.fit(loss)
        else:
            client.fit(loss, epochs=self.epochs[client.profile.position])


def squared_distance(parameters: Iterable[Tensor], references: Iterable[Tensor]) -> Tensor:
    """Return the sum of ||p - r||^2 over all tensors."""
    return torch.stack([(p - r).square().sum() for p, r in zip(parameters, references, strict=True)]).sum()
