"""FedProx: federated optimization in heterogeneous networks.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith; MLSys 2020, Algorithm 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor

from polyfed.core import Client, Server, register
from polyfed.core.options import Degenerate
from polyfed.errors import InputError
from polyfed.methods.fedavg import FedAvg
from polyfed.training.losses import squared_distance


@register("fedprox")
@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedProx: FedAvg whose clients are held near the model that they received.

    The term is (mu/2) ||theta - theta^t||^2 over parameters, without BatchNorm statistics. Papers that print mu/2
    mean half of this `mu`: InCo's 0.05 is 0.1 here. A popular library's default of 0 is FedAvg, and is refused. With
    Adam the pull is rescaled like every gradient, which is not the method that the paper analyses.
    """

    mu: Annotated[float, Ge(0), Degenerate(0)] = 0.01  # weight of the proximal term; gradient: mu (theta - theta^t)
    epochs: list[Annotated[int, Ge(0)]] | None = None  # epochs of each client, in client order; none: train.epochs
    allow_degenerate: bool = False  # accept mu 0, which is FedAvg

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
