"""pFedAFM: adaptive feature mixture for batch-level personalization in heterogeneous federated learning.

Yi, Yu, Wang, Liu, Li; IEEE ICDE 2025 (arXiv 2404.17847), Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from annotated_types import Ge, Interval
from torch import Tensor, nn

from polyfed.core import Client, Cohort, Method, Needs, Payload, Reply, Sends, Server, register, step
from polyfed.core.averaging import WeightedMean
from polyfed.core.client import weights_of
from polyfed.core.options import Degenerate
from polyfed.core.schema import ScalarField, TreeField
from polyfed.errors import InputError
from polyfed.training.multi_module import frozen


@register("pfedafm")
@dataclass(frozen=True)
class PFedAFM(Method):
    """pFedAFM: a small extractor is shared, and every client mixes its features with its own, element by element.

    Each round trains twice, at about double the cost: first the private model and the mixing vector alpha with the
    received extractor frozen, then the extractor below the frozen head. Only the extractor is sent; the released
    message also has a head, which is not used. alpha takes gradient steps with momentum, as in the released script
    for different models, and is clamped to [0, 1] after each step; the released code also applies weight decay to it,
    which pulls it to 0. In the released code the aggregate is the extractor of the last client, and all clients end
    with the last alpha, because neither is copied; here both are copied.

    A client is measured with its own model and the extractor that it last received. alpha starts at 1 and moves
    slowly: in short runs the method hardly differs from local training. Results: docs/leaderboard.md.
    """

    lr_alpha: Annotated[float, Ge(0), Degenerate(0)] = 0.01  # learning rate of the mixing vector
    alpha_momentum: Annotated[float, Interval(ge=0, lt=1)] = 0.9  # momentum of the mixing vector, new in every round
    alpha_start: Annotated[float, Interval(ge=0, le=1)] = 1.0  # initial weight of the private features
    weights: Literal["samples", "uniform"] = "samples"  # weights of clients in the mean: by samples, or equal
    buffers: Literal["average", "local"] = "average"  # BatchNorm statistics: averaged, or kept at each client
    auxiliary: str | None = None  # architecture of the shared extractor; none: the smallest client model
    allow_degenerate: bool = False  # accept lr_alpha 0; with alpha_start 1 that is local training

    verdict = "Practically local training in short runs, because its mixing weights move slowly."
    needs = Needs(same_features=True)
    sends = Sends(
        up="weights of the shared small extractor, and the number of samples",
        down="weights of the shared small extractor, and the name of its architecture",
        kinds=("shared-model", "counts"),
    )
    averaged = ("extractor",)

    def init(self, server: Server) -> None:
        shared = server.build(self.auxiliary or server.smallest.spec)
        if shared.feature_dim != server.features:
            raise InputError(
                f"method.auxiliary {self.auxiliary} has {shared.feature_dim} features and the clients' models have "
                f"{server.features}; name an architecture of {server.features}, or set models.feature_dim to "
                f"{shared.feature_dim}"
            )
        server.state["extractor"] = weights_of(shared.backbone)

    def round(self, server: Server, cohort: Cohort) -> None:
        mean = WeightedMean(server.aggregation)
        spec = self.auxiliary or server.smallest.spec
        shared = {"auxiliary": spec, "extractor": server.state["extractor"]}
        for _, reply in cohort.stream(self.train, shared=shared):
            mean.add(reply.weights("extractor"), reply.number("samples") if self.weights == "samples" else 1.0)
        server.state["extractor"] = mean.result(server.memory.weights("extractor"))  # G <- sum_k p_k G_k

    @step(
        down={"auxiliary": ScalarField("text"), "extractor": TreeField()},
        up={"extractor": TreeField(like="extractor"), "samples": ScalarField(least=0, most="samples")},
    )
    def train(self, client: Client, msg: Payload) -> Reply:
        received = msg.weights("extractor")
        if self.buffers == "local" and "statistics" in client.state:
            received |= client.memory.weights("statistics")
        client.state |= {"auxiliary": msg["auxiliary"], "extractor": received}
        client.state.setdefault("alpha", torch.full((client.profile.features,), self.alpha_start).to(client.device))
        extractor = self.extractor(client)
        self.train_mixture(client, extractor)
        self.train_extractor(client, extractor)
        trained = weights_of(extractor)
        if self.buffers == "local":
            client.state["statistics"] = {n: trained[n] for n, _ in extractor.named_buffers() if n in trained}
        return {"extractor": trained, "samples": len(client.train)}

    def train_mixture(self, client: Client, extractor: nn.Module) -> None:
        """Step 1: train phi, h and alpha on CE(h(alpha phi(x) + (1 - alpha) G(x)), y), with G frozen."""
        alpha = client.memory.tensor("alpha").clone().requires_grad_()
        velocity = torch.zeros_like(alpha)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(self.mixed(client, alpha, extractor, x), y)

        @torch.no_grad()
        def step_alpha() -> None:
            if alpha.grad is not None:
                velocity.mul_(self.alpha_momentum).add_(alpha.grad)
                alpha.sub_(self.lr_alpha * velocity).clamp_(0, 1)
                alpha.grad = None

        with frozen(extractor):
            client.fit(loss, adjust=step_alpha)
        client.state["alpha"] = alpha.detach()

    def train_extractor(self, client: Client, extractor: nn.Module) -> None:
        """Step 2: train G on CE(h(G(x)), y), with h frozen."""
        head = client.model.head
        with frozen(head):
            client.fit(
                lambda x, y: F.cross_entropy(head(extractor(x)), y), modules=[extractor], purpose="fit the extractor"
            )

    def extractor(self, client: Client) -> nn.Module:
        """Return the shared extractor that the client received last."""
        extractor = client.build(client.memory.text("auxiliary")).backbone
        client.load(client.memory.weights("extractor"), into=extractor)
        return extractor

    def mixed(self, client: Client, alpha: Tensor, extractor: nn.Module, x: Tensor) -> Tensor:
        """Return the logits of the mixed features."""
        logits: Tensor = client.model.head(alpha * client.model.features(x) + (1 - alpha) * extractor(x))
        return logits

    def predict(self, client: Client, x: Tensor) -> Tensor:
        if "alpha" not in client.state:  # before its first round a client has only its own model
            return super().predict(client, x)
        return self.mixed(client, client.memory.tensor("alpha"), self.extractor(client).eval(), x)
