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
from polyfed.core.options import Degenerate
from polyfed.core.schema import ScalarField, WeightsField
from polyfed.core.shared_model import (
    UpdateAggregator,
    apply_update,
    buffer_names,
    position_weights,
    weights_for_clients,
)
from polyfed.errors import InputError
from polyfed.methods.fedprox import FedProx
from polyfed.training import TrainSettings


@register("fednova")
@dataclass(frozen=True)
class FedNova(FedProx):
    """FedNova: FedAvg that normalises every client's update by its number of local steps.

    A client sends its weights and the normaliser a_k, and the server computes d_k. With equal a_k the result is
    bit-identical to FedAvg. BatchNorm statistics are averaged; a popular benchmark puts them through the formula and
    rounds their counters. The normaliser counts steps, not epochs. A client that took no step has no direction and is
    left out. No normaliser is known for Adam: it raises `InputError`, unless `allow_step_count` uses the number of
    steps as a_k. The effective number of steps tau_eff is sum_k p_k a_k; with a proximal term it is the mean number
    of steps, sum_k p_k tau_k, as in the released code. Clients are measured with the server's new model.
    """

    tau_eff: Annotated[float, Gt(0)] | None = None  # effective number of client steps per round; none: see below
    mu: Annotated[float, Ge(0), Degenerate(0)] = 0.0  # weight of the proximal term (FedProx)
    allow_degenerate: bool = True  # accept mu 0: no proximal term
    allow_step_count: bool = False  # use the number of steps as a_k, with any optimiser

    verdict = "FedAvg for clients with unequal numbers of steps; the same as FedAvg when the numbers are equal."
    sends = Sends(
        up="all weights of the model, the number of samples, and the number of steps, also normalised",
        down="all weights of the model",
        kinds=("weights", "counts", "training-statistics"),
    )

    def check_training(self, settings: TrainSettings) -> None:
        self.normaliser(settings, 1)

    def round(self, server: Server, cohort: Cohort) -> None:
        model = server.memory.weights("model")
        updates, unit, steps = UpdateAggregator(server, model), 0.0, dict[str, float]()
        for k, reply in cohort.stream(self.train, out=weights_for_clients(server, cohort.ids, model=model)):
            weight, a_k = self.weight(reply), reply.number("normaliser")
            if not a_k:
                continue  # no step, no direction
            unit = unit or a_k  # relative to the first a_k, so that equal normalisers cancel exactly
            updates.add(k, reply.weights("model"), weight, times=self.server_lr * (unit / a_k))  # -d_k
            steps[k] = weight * ((self.tau_eff or (reply.number("steps") if self.mu else a_k)) / unit)
        update = updates.mean()  # -sum_k p_k d_k, over the clients that hold each position
        total = position_weights(server, model, steps)  # sum_k w_k a_k over these clients
        buffers = buffer_names(server)
        change = {
            name: delta
            if name in buffers or not delta.is_floating_point()
            else delta * _ratio(total[name], update.weight[name])
            for name, delta in update.change.items()
        }
        update = Update(change, update.weight)
        server.state["model"] = apply_update(server, model, update)  # theta - tau_eff sum_k p_k d_k

    @step(
        down={"model": WeightsField()},
        up={
            "model": WeightsField(),
            "samples": ScalarField(least=0, most="samples"),
            "normaliser": ScalarField(least=0),
            "steps": ScalarField(least=0),
        },
    )
    def train(self, client: Client, msg: Payload) -> Reply:
        self.receive(client, msg)
        self.learn(client)
        tau = client.fits[-1].steps
        return {**self.upload(client, msg), "normaliser": self.normaliser(client.settings, tau), "steps": tau}

    def normaliser(self, settings: TrainSettings, tau: int) -> float:
        """Return a_k: the length of tau local steps, in units of one gradient step."""
        rho, decay = settings.momentum, settings.lr * self.mu
        if self.allow_step_count:
            return float(tau)
        if settings.optimizer != "sgd" or (rho and decay):
            optimizer = "Adam" if settings.optimizer == "adam" else "momentum together with a proximal term"
            raise InputError(
                f"FedNova: no normaliser known for {optimizer}; use train.optimizer: sgd with momentum or with "
                "method.mu, or set method.allow_step_count: true to count steps"
            )
        if decay >= 1:
            raise InputError(
                f"train.lr times method.mu is {decay:g}; expected a number below 1, or every proximal step overshoots"
            )
        if decay:
            return (1 - (1 - decay) ** tau) / decay
        return (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)


def _ratio(total: Tensor, weight: Tensor) -> Tensor:
    """Return tau_eff(q) = sum_k w_k a_k / sum_k w_k for every position q, and 0 where no client holds it."""
    return torch.where(weight > 0, total / weight, torch.zeros_like(weight))
