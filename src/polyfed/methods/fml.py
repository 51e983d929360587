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
    """FML: beside its private model every client trains a small shared one, and the two teach each other.

    The shared ("meme") model is averaged with its BatchNorm statistics, the private one never leaves. Each model is
    run once per batch, in training mode, and its detached output is the other's target: no pass is made for teaching
    alone, so statistics move by a model's own training only. A popular library leaves the targets attached, so that
    each loss drives the other model too (`undetached_targets`), and divides the divergence by the number of classes
    (`kl_reduction: mean`); its default weights of 1 switch the teaching off, which is refused here. A last batch of
    one sample, which a shared model with BatchNorm cannot be trained on, trains the private model alone.
    `train.clip_norm` holds for each of the two models. With alpha 0.5 labels move the private model half as far per
    step: on the quickstart preset it ends 3 points below local training, about where that is at half the step size.
    """

    alpha: Annotated[float, Interval(ge=0, le=1), Degenerate(1)] = 0.5  # cross-entropy in the private model's loss
    beta: Annotated[float, Interval(ge=0, le=1), Degenerate(1)] = 0.5  # cross-entropy in the shared model's loss
    temperature: Annotated[float, Gt(0)] = 1.0  # T of the divergence, which is multiplied by T^2
    weights: Literal["uniform", "samples"] = "uniform"  # how clients count in the mean
    auxiliary: str | None = None  # architecture of the shared model; none: that of the smallest client model
    kl_reduction: Literal["batchmean", "mean"] = "batchmean"  # mean: the divided divergence of a popular library
    undetached_targets: bool = False  # a popular library's fault: each loss also moves the model that it learns from
    allow_degenerate: bool = False  # accept alpha or beta 1, which is training without a teacher

    needs = Needs()
    sends = Sends(
        up="all weights of the shared small model, and the number of samples",
        down="all weights of the shared small model, and the name of its architecture",
    )

    def init(self, server: Server) -> None:
        server.state["meme"] = weights_of(server.build(self.auxiliary or server.smallest.spec))

    def round(self, server: Server, cohort: Cohort) -> None:
        mean = WeightedMean()
        shared = {"auxiliary": self.auxiliary or server.smallest.spec, "meme": server.state["meme"]}
        for _, got in cohort.stream(self.train, shared=shared):
            mean.add(got.weights("meme"), got.number("samples") if self.weights == "samples" else 1.0)
        server.state["meme"] = mean.result(server.memory.weights("meme"))  # w <- mean_k w_k

    @step(
        down={"auxiliary": ScalarField("text"), "meme": TreeField()},
        up={"meme": TreeField(like="meme"), "samples": ScalarField(least=0)},
    )
    def train(self, client: Client, msg: Payload) -> Reply:
        meme = client.build(msg.text("auxiliary"))
        client.load(msg.weights("meme"), into=meme)

        def loss(x: Tensor, y: Tensor) -> Tensor | tuple[Tensor, ...]:
            z = client.model(x)
            if len(y) == 1 and meme.has_batchnorm:
                return F.cross_entropy(z, y)
            z_w = meme(x)
            return *self.taught(self.alpha, z, z_w, y), *self.taught(self.beta, z_w, z, y)  # L_local, L_meme

        client.fit(
            loss,
            parameters=[*client.model.parameters(), *meme.parameters()],
            clip_norm=None,
            adjust=clip_each(client.settings.clip_norm, client.model, meme),
        )
        return {"meme": weights_of(meme), "samples": len(client.train)}

    def taught(self, share: float, own: Tensor, other: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """share CE(own) + (1 - share) KL(sg[softmax other] || softmax own), written as CE and what is added to it."""
        ce = F.cross_entropy(own, y)
        target = other if self.undetached_targets else other.detach()
        kl = kl_divergence(target, own, temperature=self.temperature, reduction=self.kl_reduction)
        return ce, (1 - share) * (kl - ce)
