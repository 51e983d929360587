"""SCAFFOLD: stochastic controlled averaging for federated learning.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh; ICML 2020, Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from polyfed.core import Client, Cohort, Payload, Reply, Sends, Server, register, step
from polyfed.core.schema import ScalarField, TreeField, WeightsField
from polyfed.core.shared_model import UpdateAggregator, apply_update, buffer_names, holder_counts, weights_for_clients
from polyfed.errors import InputError
from polyfed.methods.fedavg import FedAvg
from polyfed.training import TrainSettings


@register("scaffold")
@dataclass(frozen=True)
class Scaffold(FedAvg):
    """SCAFFOLD: FedAvg with client steps corrected by the difference of client and server control variates.

    Control variates start at zero and cover parameters only. A popular benchmark starts them from random weights,
    which leaves a bias under partial participation, and includes BatchNorm statistics. Means are over the clients
    that replied; a popular library divides by all selected clients. Option II requires plain SGD: other optimisers
    raise `InputError`, unless `allow_any_optimizer` is set. That option shifts the weights by eta (c_k - c) after
    each step, as the benchmark and InCo do. Clients are measured with the server's new model.
    """

    weights: Literal["samples", "uniform"] = "uniform"  # weights of clients in the mean: equal, or by samples
    option: Literal["I", "II"] = "II"  # new control variate: full gradient (I), or mean of the local steps (II)
    allow_any_optimizer: bool = False  # accept momentum and Adam, for which option II is not exact

    verdict = (
        "The strongest of the FedAvg variants on split ResNets here; needs state at clients and twice the traffic."
    )
    sends = Sends(
        up="all weights of the model, the number of samples, and the change of the client's control variate",
        down="all weights of the model, and the server's control variate",
        kinds=("weights", "counts", "gradients"),
    )
    averaged = ("model", "control")

    def check_training(self, settings: TrainSettings) -> None:
        if not (_is_plain_sgd(settings) or self.allow_any_optimizer):
            used = "Adam" if settings.optimizer == "adam" else f"momentum {settings.momentum:g}"
            raise InputError(
                f"SCAFFOLD needs plain SGD, but the clients train with {used}; set train.optimizer: sgd and "
                "train.momentum: 0, or method.allow_any_optimizer: true"
            )

    def init(self, server: Server) -> None:
        super().init(server)
        model, buffers = server.memory.weights("model"), buffer_names(server)
        server.state["control"] = {n: torch.zeros_like(t) for n, t in model.items() if n not in buffers}

    def round(self, server: Server, cohort: Cohort) -> None:
        model, c = server.memory.weights("model"), server.memory.weights("control")
        updates, controls = UpdateAggregator(server, model), UpdateAggregator(server, c)
        out = weights_for_clients(server, cohort.ids, model=model, control=c)
        for k, reply in cohort.stream(self.train, out=out):
            updates.add(k, reply.weights("model"), self.weight(reply), times=self.server_lr)
            controls.add_change(k, reply.weights("control"))
        server.state["model"] = apply_update(server, model, updates.mean())  # theta + eta_g mean of (theta_k - theta)
        mean, population = controls.mean(), holder_counts(server, model)
        server.state["control"] = c | {  # c + |S| / N mean of (c_k^+ - c_k), per position over the clients holding it
            name: (c[name].double() + delta * (mean.weight[name] / population[name].clamp(min=1))).to(c[name].dtype)
            for name, delta in mean.change.items()
        }

    @step(
        down={"model": WeightsField(), "control": TreeField()},
        up={
            "model": WeightsField(),
            "samples": ScalarField(least=0, most="samples"),
            "control": TreeField(like="control"),
        },
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
            scale = 1 / (steps * client.settings.lr)  # option II: c_k^+ = c_k - c + (theta^t - theta_k) / (tau eta)
            change = {name: (received[name] - p.detach()) * scale - c[name] for name, p in theta.items()}
        else:
            change = {name: torch.zeros_like(c[name]) for name in theta}
        client.state["control"] = {name: own[name] + delta for name, delta in change.items()}
        return {**self.upload(client, msg), "control": change}

    def corrected_fit(self, client: Client, correction: dict[str, Tensor]) -> int:
        """Train with theta <- theta - eta (g(theta) - c_k + c), and return the number of steps."""
        plain, eta = _is_plain_sgd(client.settings), client.settings.lr
        pairs = [(p, correction[name]) for name, p in client.model.named_parameters()]

        @torch.no_grad()
        def correct() -> None:
            for p, c in pairs:
                if not plain:
                    p.sub_(c, alpha=eta)
                elif p.grad is not None:
                    p.grad += c

        return client.fit(adjust=correct).steps

    def full_gradient(self, client: Client) -> dict[str, Tensor]:
        """Return the gradient of the mean loss over all samples, in training batches; BatchNorm statistics stay."""
        model = client.model
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        total = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
        count = 0
        for x, y in client.train.batches(client.settings.batch_size, drop_single=model.has_batchnorm):
            gradients = torch.autograd.grad(client.cross_entropy(x, y), list(model.parameters()))
            for name, gradient in zip(total, gradients, strict=True):
                total[name] += gradient * len(y)
            count += len(y)
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])
        return {name: t / max(count, 1) for name, t in total.items()}


def _is_plain_sgd(settings: TrainSettings) -> bool:
    return settings.optimizer == "sgd" and settings.momentum == 0
