"""FML: federated mutual learning.

Shen, Zhang, Jia, Zhang, Huang, Zhou, Kuang, Wu, Wu; arXiv 2006.16765, 2020, Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch.nn.functional as F
from annotated_types import Gt, Interval
from torch import Tensor

from polyfed.core import Client, Cohort, Method, Needs, Payload, Reply, Sends, Server, register, step
from polyfed.core.averaging import WeightedMean
from polyfed.core.client import weights_of
from polyfed.core.options import Degenerate
from polyfed.core.schema import ScalarField, TreeField
from polyfed.training.losses import kl_divergence
from polyfed.training.multi_module import clip_each


@register("fml")
@dataclass(frozen=True)
class FML(Method):
    """FML: every client trains a private model and a small shared model, which teach each other.

    The shared ("meme") model is averaged with its BatchNorm statistics; the private model never leaves the client.
    Each model runs once per batch in training mode, and its detached output is the target of the other model. There
    are no extra forward passes, so BatchNorm statistics change by a model's own training only. A popular library does
    not detach the targets, so each loss also trains the other model (`undetached_targets`), and divides the
    divergence by the number of classes (`kl_reduction: mean`). Its default weights of 1 disable distillation, which
    raises `InputError` here. A last batch of one sample, on which a shared model with BatchNorm cannot be trained,
    trains the private model only. `train.clip_norm` applies to each of the two models.

    Clients are measured with their private models. With alpha 0.5 the cross-entropy has half of its usual weight, so
    short runs end below local training. Results: docs/leaderboard.md.
    """

    alpha: Annotated[float, Interval(ge=0, le=1), Degenerate(1)] = 0.5  # weight of cross-entropy, private model
    beta: Annotated[float, Interval(ge=0, le=1), Degenerate(1)] = 0.5  # weight of cross-entropy, shared model
    temperature: Annotated[float, Gt(0)] = 1.0  # T of the divergence, which is multiplied by T^2
    weights: Literal["uniform", "samples"] = "uniform"  # weights of clients in the mean: equal, or by samples
    auxiliary: str | None = None  # architecture of the shared model; none: the smallest client model
    kl_reduction: Literal["batchmean", "mean"] = "batchmean"  # mean: also divide by the number of classes
    undetached_targets: bool = False  # reproduce a fault of a popular library: gradients also flow into the targets
    allow_degenerate: bool = False  # accept alpha or beta 1, which disables distillation

    verdict = "Trains a small shared model with the private one; slightly below local training on own data here."
    needs = Needs()
    sends = Sends(
        up="all weights of the shared small model, and the number of samples",
        down="all weights of the shared small model, and the name of its architecture",
        kinds=("shared-model", "counts"),
    )
    averaged = ("meme",)

    def init(self, server: Server) -> None:
        server.state["meme"] = weights_of(server.build(self.auxiliary or server.smallest.spec))

    def round(self, server: Server, cohort: Cohort) -> None:
        mean = WeightedMean(server.aggregation)
        shared = {"auxiliary": self.auxiliary or server.smallest.spec, "meme": server.state["meme"]}
        for _, reply in cohort.stream(self.train, shared=shared):
            mean.add(reply.weights("meme"), reply.number("samples") if self.weights == "samples" else 1.0)
        server.state["meme"] = mean.result(server.memory.weights("meme"))  # w <- mean_k w_k

    @step(
        down={"auxiliary": ScalarField("text"), "meme": TreeField()},
        up={"meme": TreeField(like="meme"), "samples": ScalarField(least=0, most="samples")},
    )
    def train(self, client: Client, msg: Payload) -> Reply:
        meme = client.build(msg.text("auxiliary"))
        client.load(msg.weights("meme"), into=meme)

        def loss(x: Tensor, y: Tensor) -> Tensor | tuple[Tensor, ...]:
            z = client.model(x)
            if len(y) == 1 and meme.has_batchnorm:
                return F.cross_entropy(z, y)
            z_w = meme(x)
            return *self.losses(self.alpha, z, z_w, y), *self.losses(self.beta, z_w, z, y)  # L_local, L_meme

        client.fit(
            loss,
            parameters=[*client.model.parameters(), *meme.parameters()],
            clip_norm=None,
            adjust=clip_each(client.settings.clip_norm, client.model, meme),
        )
        return {"meme": weights_of(meme), "samples": len(client.train)}

    def losses(self, weight: float, own: Tensor, other: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return w CE(own) + (1 - w) KL(sg[softmax other] || softmax own), as CE and the term added to it."""
        ce = F.cross_entropy(own, y)
        target = other if self.undetached_targets else other.detach()
        kl = kl_divergence(target, own, temperature=self.temperature, reduction=self.kl_reduction)
        return ce, (1 - weight) * (kl - ce)
