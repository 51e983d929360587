"""pFedLA: layer-wised model aggregation for personalized federated learning.

Ma, Zhang, Guo, Xu; CVPR 2022, Algorithm 1.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge
from torch import Tensor, nn

from polyfed.core import Client, Cohort, Method, Needs, Payload, Reply, Sends, Server, register, rng, step
from polyfed.core.client import copy_into, weights_of
from polyfed.core.options import Degenerate
from polyfed.core.payload import Weights
from polyfed.core.schema import TreeField, WeightsField
from polyfed.errors import InputError

DEPTH = 3  # hidden layers of a hypernetwork


@register("pfedla")
@dataclass(frozen=True)
class PFedLA(Method):
    """pFedLA: the server mixes a model for each client, layer by layer, with weights from a learned hypernetwork.

    The server stores a model and a hypernetwork per client, so its memory grows with the number of clients (recorded
    in the `pfedla` events). A layer is the weight and bias of one module. Two popular unofficial versions step the
    hypernetwork away from the trained model, and one hypernetwork for all clients is another method. Here each client
    has its own, and the mixed model moves towards the trained one. If ReLU sets a whole row of mixing weights to
    zero, the client's own layer is used and a warning is recorded. Clients are measured with the models that they
    have trained.
    """

    hyper_lr: Annotated[float, Ge(0), Degenerate(0)] = 0.005  # learning rate of the hypernetworks
    embedding: Annotated[int, Ge(1)] = 100  # size of a client embedding
    hidden: Annotated[int, Ge(1)] = 100  # width of the three hidden layers of a hypernetwork
    local_layers: Annotated[int, Ge(0)] = 0  # HeurpFedLA: number of layers that stay at the client
    buffers: Literal["local", "average"] = "local"  # BatchNorm statistics: each client's own, or mixed with the layer
    allow_degenerate: bool = False  # accept hyper_lr 0, which leaves the mixing weights random

    verdict = (
        "Personal models as layer-wise mixtures of all clients' models; needs one architecture and heavy traffic."
    )
    needs = Needs(same_architecture=True)
    sends = Sends(
        up="all weights of the model",
        down="weights of a model mixed for the client",
        kinds=("weights",),
    )

    def init(self, server: Server) -> None:
        server.state["initial"] = weights_of(server.build(server.roster[0].spec))
        layers = len(self.layers(server))
        if self.local_layers > layers:
            raise InputError(f"method.local_layers is {self.local_layers}, but the model has {layers} layers")

    def round(self, server: Server, cohort: Cohort) -> None:
        models = [self.model(server, profile.name) for profile in server.roster]  # theta_1 ... theta_N
        nets = {k: self.hypernetwork(server, k) for k in cohort.ids}
        free = {k: self.mixing_weights(server, k, net) for k, net in nets.items()}
        local = {k: self.local_rows(server, k, alpha.detach()) for k, alpha in free.items()}
        alphas = {k: torch.where(local[k][:, None], self.one_hot(server, k), alpha) for k, alpha in free.items()}
        mixed = {k: self.mixed(server, models, k, alpha.detach()) for k, alpha in alphas.items()}
        each = {k: {"model": self.without(server, local[k], bar)} for k, bar in mixed.items()}
        for k, reply in cohort.stream(self.train, each=each):
            trained = reply.weights("model")
            change = {name: trained[name].double() - bar.double() for name, bar in mixed[k].items()}  # Delta_k
            self.update_hypernetwork(server, nets[k], alphas[k], models, change)
            server.state[f"hypernetwork {k}"] = weights_of(nets[k])
            server.state[f"model {k}"] = trained  # theta_k <- bar theta_k + Delta_k
        self.record_sizes(server, alphas)

    def mixing_weights(self, server: Server, k: str, net: Hypernetwork) -> Tensor:
        """Return alpha_k: one row per layer, one column per client, normalised relu(out)."""
        out = net().relu()
        total = out.sum(1, keepdim=True)
        alive = total > 0
        if not alive.all():
            dead = int((~alive).sum())
            server.record("warning", message=f"{dead} rows of client {k}'s mixing weights are 0; its own layers stay")
        return torch.where(alive, out / torch.where(alive, total, torch.ones_like(total)), self.one_hot(server, k))

    def local_rows(self, server: Server, k: str, alpha: Tensor) -> Tensor:
        """HeurpFedLA: return which layers stay local, those of largest own weight, once the client has trained."""
        rows = torch.zeros(len(alpha), dtype=torch.bool, device=alpha.device)
        if f"model {k}" in server.state:
            order = alpha[:, self.column(server, k)].sort(descending=True, stable=True).indices
            rows[order[: self.local_layers]] = True
        return rows

    def mixed(self, server: Server, models: list[Weights], k: str, alpha: Tensor) -> Weights:
        """Return bar theta_k^l = sum_j alpha_k^{l,j} theta_j^l."""
        own = models[self.column(server, k)]
        bar, buffers = dict(own), server.roster[0].buffers
        for row, names in zip(alpha.double().tolist(), self.layers(server).values(), strict=True):
            for name in names:
                if own[name].is_floating_point() and (name not in buffers or self.buffers == "average"):
                    terms = (a * theta[name].double() for a, theta in zip(row, models, strict=True) if a)
                    bar[name] = sum(terms, torch.zeros_like(own[name], dtype=torch.float64)).to(own[name].dtype)
        return bar

    def without(self, server: Server, local: Tensor, bar: Weights) -> Weights:
        """Return the mixed model without the layers that stay at the client."""
        layers = zip(local.tolist(), self.layers(server).values(), strict=True)
        stay = {name for is_local, names in layers if is_local for name in names}
        return {name: tensor for name, tensor in bar.items() if name not in stay}

    @step(down={"model": TreeField()}, up={"model": WeightsField()})
    def train(self, client: Client, msg: Payload) -> Reply:
        client.load(weights_of(client.model) | msg.weights("model"))
        client.fit()
        return {"model": weights_of(client.model)}

    def update_hypernetwork(
        self, server: Server, net: Hypernetwork, alpha: Tensor, models: list[Weights], change: Weights
    ) -> None:
        """Update (v_k, psi_k) <- (v_k, psi_k) - eta_h J^T (-Delta_k), with J = d bar theta_k / d (v_k, psi_k)."""
        buffers = server.roster[0].buffers
        slopes = [  # d <bar theta_k^l, -Delta_k^l> / d alpha_k^{l,j} = -<theta_j^l, Delta_k^l>
            [-sum(float((theta[n] * change[n]).sum()) for n in names if n not in buffers) for theta in models]
            for names in self.layers(server).values()
        ]
        parameters = list(net.parameters())
        objective = (alpha * torch.tensor(slopes).to(alpha.device)).sum()
        gradients = torch.autograd.grad(objective, parameters, allow_unused=True)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                if gradient is not None:
                    parameter.sub_(gradient, alpha=self.hyper_lr)

    def record_sizes(self, server: Server, alphas: dict[str, Tensor]) -> None:
        """Record the mean weight of own layers, and the memory of models and hypernetworks in bytes."""
        own = [float(alpha.detach()[:, self.column(server, k)].mean()) for k, alpha in alphas.items()]
        sizes = dict.fromkeys(("model", "hypernetwork"), 0.0)
        for name, value in server.state.items():
            kind = name.partition(" ")[0]
            if kind in sizes and isinstance(value, dict):
                sizes[kind] += sum(t.nbytes for t in value.values() if isinstance(t, Tensor))
        server.record(
            "pfedla", clients=list(alphas), own_weight=own, models=sizes["model"], hypernetworks=sizes["hypernetwork"]
        )

    def model(self, server: Server, k: str) -> Weights:
        """Return theta_k as the client last trained it, or the initial model."""
        return server.memory.weights(f"model {k}" if f"model {k}" in server.state else "initial")

    def hypernetwork(self, server: Server, k: str) -> Hypernetwork:
        with rng.seeded(server.seed, "pfedla", k):
            net = Hypernetwork(self.embedding, self.hidden, len(self.layers(server)), len(server.roster))
        net.to(server.device)
        if f"hypernetwork {k}" in server.state:
            copy_into(net, server.memory.weights(f"hypernetwork {k}"))
        return net

    def layers(self, server: Server) -> dict[str, list[str]]:
        """Return the tensor names of every module with parameters; they have common mixing weights."""
        grouped: dict[str, list[str]] = {}
        for name in server.memory.weights("initial"):
            grouped.setdefault(name.rpartition(".")[0], []).append(name)
        return {module: names for module, names in grouped.items() if {*names} - server.roster[0].buffers}

    def one_hot(self, server: Server, k: str) -> Tensor:
        """Return mixing weights that leave the client its own model."""
        rows = torch.zeros(len(self.layers(server)), len(server.roster), device=server.device)
        rows[:, self.column(server, k)] = 1
        return rows

    def column(self, server: Server, k: str) -> int:
        return [profile.name for profile in server.roster].index(k)


class Hypernetwork(nn.Module):
    """An embedding, hidden layers, and one output per layer of the model and client."""

    def __init__(self, embedding: int, hidden: int, layers: int, clients: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1, embedding)
        widths = [embedding, *[hidden] * DEPTH]
        inner = [part for a, b in itertools.pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
        self.body = nn.Sequential(*inner, nn.Linear(hidden, layers * clients))
        self.shape = (layers, clients)

    def forward(self) -> Tensor:
        scores: Tensor = self.body(self.embedding.weight).reshape(self.shape)
        return scores
