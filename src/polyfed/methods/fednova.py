"""FedNova: tackling the objective inconsistency problem in heterogeneous federated optimization.

Wang, Liu, Liang, Joshi, Poor; NeurIPS 2020, Algorithm 1 and Table 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from polyfed.core import Client, Cohort, Payload, Reply, Sends, Server, register, step
from polyfed.core.filter import Update
from polyfed.core.one_model import UpdateAggregator, apply_update, buffer_names, position_weights, weights_for_clients
from polyfed.core.options import Degenerate
from polyfed.core.schema import ScalarField, WeightsField
from polyfed.errors import InputError
from polyfed.methods.fedprox import FedProx
from polyfed.training import TrainSettings


@register("fednova")
@dataclass(frozen=True)
class FedNova(FedProx):
    """FedNova: FedAvg whose clients count by the direction they found, not by how many steps they took.

    A client sends its weights and the normaliser a_k, from which the server forms d_k: as much as d_k and a_k, and
    with equal a_k the sums are FedAvg's to the last bit. BatchNorm statistics are averaged; a popular benchmark puts
    them through the formula, and rounds their counters. Steps are counted, not epochs. A client that took no step has
    no direction and is left out. For Adam no normaliser is known: it is refused, unless `allow_step_count` takes a_k
    for the number of steps.
    """

    tau_eff: Annotated[float, Gt(0)] | None = None  # length of the server's step in client steps; none: sum_k p_k a_k
    mu: Annotated[float, Ge(0), Degenerate(0)] = 0.0  # weight of FedProx's term in the clients' loss
    allow_degenerate: bool = True  # accept mu 0: no such term
    allow_step_count: bool = False  # take a_k for the number of steps with any optimiser

    sends = Sends(
        up="all weights of the model, the number of samples, and a measure of the number of steps",
        down="all weights of the model",
    )

    def check_training(self, settings: TrainSettings) -> None:
        self.normaliser(settings, 1)

    def round(self, server: Server, cohort: Cohort) -> None:
        model = server.memory.weights("model")
        changes, unit, taken = UpdateAggregator(server, model), 0.0, dict[str, float]()
        for k, got in cohort.stream(self.train, out=weights_for_clients(server, cohort.ids, model=model)):
            weight, a_k = self.weight(got), got.number("normaliser")
            if not a_k:
                continue  # no step, no direction
            unit = unit or a_k  # all is counted in the first client's a, so that equal ones cancel exactly
            changes.add(k, got.weights("model"), weight, times=self.server_lr * (unit / a_k))  # -d_k
            taken[k] = weight * ((self.tau_eff or a_k) / unit)
        update = changes.mean()  # -sum_k p_k d_k over the owners of each position (B5)
        total = position_weights(server, model, taken)  # sum_k w_k a_k over them
        counted = buffer_names(server)
        change = {
            name: by
            if name in counted or not by.is_floating_point()
            else by * _ratio(total[name], update.weight[name])
            for name, by in update.change.items()
        }
        server.state["model"] = apply_update(
            server, model, Update(change, update.weight)
        )  # theta - tau_eff sum_k p_k d_k

    @step(
        down={"model": WeightsField()},
        up={"model": WeightsField(), "samples": ScalarField(least=0), "normaliser": ScalarField(least=0)},
    )
    def train(self, client: Client, msg: Payload) -> Reply:
        self.receive(client, msg)
        self.learn(client)
        tau = client.fits[-1].steps
        return {**self.upload(client, msg), "normaliser": self.normaliser(client.settings, tau)}

    def normaliser(self, settings: TrainSettings, tau: int) -> float:
        """a_k: the length of tau steps, in steps of one gradient."""
        rho, pull = settings.momentum, settings.lr * self.mu
        if self.allow_step_count:
            return float(tau)
        if settings.optimizer != "sgd" or (rho and pull):
            what = "Adam" if settings.optimizer == "adam" else "momentum together with a proximal term"
            raise InputError(
                f"FedNova: no normaliser known for {what}; use train.optimizer: sgd with momentum or with method.mu, "
                "or set method.allow_step_count: true to count steps"
            )
        if pull >= 1:
            raise InputError(
                f"train.lr times method.mu is {pull:g}, so that each proximal step overshoots; it must be below 1"
            )
        if pull:
            return (1 - (1 - pull) ** tau) / pull
        return (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)


def _ratio(total: Tensor, weight: Tensor) -> Tensor:
    """tau_eff(q) = sum_k w_k a_k / sum_k w_k, and 0 where nobody owns a position."""
    return torch.where(weight > 0, total / weight, torch.zeros_like(weight))
