"""SCAFFOLD: stochastic controlled averaging for federated learning.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh; ICML 2020, Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from polyfed.core import Client, Cohort, Payload, Reply, Sends, Server, register, step
from polyfed.core.one_model import UpdateAggregator, apply_update, buffer_names, holder_counts, weights_for_clients
from polyfed.core.schema import ScalarField, TreeField, WeightsField
from polyfed.errors import InputError
from polyfed.methods.fedavg import FedAvg
from polyfed.training import TrainSettings


@register("scaffold")
@dataclass(frozen=True)
class Scaffold(FedAvg):
    """SCAFFOLD: FedAvg whose client steps are corrected by how client and server gradients differ.

    Controls start at zero and hold parameters only; a popular benchmark starts them from random weights, which leaves
    a bias under partial participation, and puts BatchNorm statistics in. Means are over those who answered; a popular
    library divides by those who were asked. Option II supposes plain SGD: others are refused, unless
    `allow_any_optimizer`, which shifts the weights by eta (c_k - c) beside each step, as that benchmark and InCo do.
    """

    weights: Literal["samples", "uniform"] = "uniform"  # how clients count in the mean (all alike, or by samples)
    option: Literal["I", "II"] = "II"  # new control: the gradient at the received model, or the mean of the steps
    allow_any_optimizer: bool = False  # accept momentum and Adam, for which option II is no identity

    sends = Sends(
        up="all weights of the model, the number of samples, and the change of the client's control variate",
        down="all weights of the model, and the server's control variate",
    )

    def check_training(self, settings: TrainSettings) -> None:
        if not (_plain(settings) or self.allow_any_optimizer):
            used = "Adam" if settings.optimizer == "adam" else f"momentum {settings.momentum:g}"
            raise InputError(
                f"SCAFFOLD needs plain SGD, but the clients train with {used}; set train.optimizer: sgd and "
                "train.momentum: 0, or method.allow_any_optimizer: true"
            )

    def init(self, server: Server) -> None:
        super().init(server)
        model, counted = server.memory.weights("model"), buffer_names(server)
        server.state["control"] = {n: torch.zeros_like(t) for n, t in model.items() if n not in counted}

    def round(self, server: Server, cohort: Cohort) -> None:
        model, c = server.memory.weights("model"), server.memory.weights("control")
        changes, controls = UpdateAggregator(server, model), UpdateAggregator(server, c)
        for k, got in cohort.stream(self.train, out=weights_for_clients(server, cohort.ids, model=model, control=c)):
            changes.add(k, got.weights("model"), self.weight(got), times=self.server_lr)
            controls.add_change(k, got.weights("control"))
        server.state["model"] = apply_update(server, model, changes.mean())  # theta + eta_g mean of (theta_k - theta)
        mean, population = controls.mean(), holder_counts(server, model)
        server.state["control"] = c | {  # c + |S| / N mean of (c_k^+ - c_k), for each position over its holders (B5)
            name: (c[name].double() + by * (mean.weight[name] / population[name].clamp(min=1))).to(c[name].dtype)
            for name, by in mean.change.items()
        }

    @step(
        down={"model": WeightsField(), "control": TreeField()},
        up={"model": WeightsField(), "samples": ScalarField(least=0), "control": TreeField(like="control")},
    )
    def train(self, client: Client, msg: Payload) -> Reply:
        self.receive(client, msg)
        theta = dict(client.model.named_parameters())
        received = {name: parameter.detach().clone() for name, parameter in theta.items()}
        c = msg.weights("control")
        own = client.memory.weights("control") if "control" in client.state else {n: t * 0 for n, t in c.items()}
        gradient = self.full_gradient(client) if self.option == "I" else None
        steps = self.corrected_fit(client, {name: c[name] - own[name] for name in theta})
        if gradient is not None:
            change = {name: gradient[name] - own[name] for name in theta}  # option I: c_k^+ = grad L_k(theta^t)
        elif steps:
            pace = 1 / (steps * client.settings.lr)  # option II: c_k^+ = c_k - c + (theta^t - theta_k) / (tau eta)
            change = {name: (received[name] - p.detach()) * pace - c[name] for name, p in theta.items()}
        else:
            change = {name: torch.zeros_like(c[name]) for name in theta}
        client.state["control"] = {name: own[name] + by for name, by in change.items()}
        return {**self.upload(client, msg), "control": change}

    def corrected_fit(self, client: Client, correction: dict[str, Tensor]) -> int:
        """theta <- theta - eta (g(theta) - c_k + c); the number of steps."""
        plain, eta = _plain(client.settings), client.settings.lr
        pairs = [(p, correction[name]) for name, p in client.model.named_parameters()]

        @torch.no_grad()
        def correct() -> None:
            for p, by in pairs:
                if not plain:
                    p.sub_(by, alpha=eta)
                elif p.grad is not None:
                    p.grad += by

        return client.fit(adjust=correct).steps

    def full_gradient(self, client: Client) -> dict[str, Tensor]:
        """The gradient of the mean loss over the client's samples, taken in training batches; statistics stay."""
        model = client.model
        kept = {name: buffer.clone() for name, buffer in model.named_buffers()}
        total = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
        seen = 0
        for x, y in client.train.batches(client.settings.batch_size, drop_single=model.has_batchnorm):
            parts_of = torch.autograd.grad(client.cross_entropy(x, y), list(model.parameters()))
            for name, part in zip(total, parts_of, strict=True):
                total[name] += part * len(y)
            seen += len(y)
        for name, buffer in model.named_buffers():
            buffer.copy_(kept[name])
        return {name: t / max(seen, 1) for name, t in total.items()}


def _plain(settings: TrainSettings) -> bool:
    return settings.optimizer == "sgd" and settings.momentum == 0
