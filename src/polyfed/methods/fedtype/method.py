"""FedType: bridging model heterogeneity via uncertainty-based asymmetrical reciprocity learning.

Wang, Zhao, Lyu, You, Huai, Ma; ICML 2024, Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from annotated_types import Gt, Interval
from torch import Tensor, nn

from polyfed.core import Client, Cohort, Method, Needs, Payload, Reply, Sends, Server, register, step
from polyfed.core.averaging import WeightedMean
from polyfed.core.client import weights_of
from polyfed.core.schema import ScalarField, TreeField
from polyfed.methods.fedtype.conformal import Conformal, calibrated, consensus, ranking_loss
from polyfed.training import Fit, Loss, Samples
from polyfed.training.losses import kl_divergence
from polyfed.training.multi_module import frozen
from polyfed.training.samples import EVALUATION_BATCH


@register("fedtype")
@dataclass(frozen=True)
class FedType(Method):
    """FedType: a small proxy is shared; it learns from the private model's outputs, which learns from its label sets.

    The private model's ranking loss is a reconstruction of what the paper describes. In the released code it is made
    of the proxy's detached outputs alone, so that it moves nothing, and its sign is turned round;
    `ranking_without_effect` gives that: numbers made with it measure the path from private model to proxy only. Sets
    are calibrated on held-out samples, which the released code trains on too, so that it cannot promise their
    coverage; where a tenth of a client's samples is too few to hold out, its training samples are used here as well,
    and the run records a warning. The divergence is not divided by the number of classes (`kl_reduction: mean` does).
    Private model and proxy take turns by local epochs, each with an optimiser of its own for the turn.
    """

    auxiliary: str | None = None  # architecture of the proxy; none: that of the smallest client model
    coverage: Annotated[float, Interval(gt=0, lt=1)] = 0.9  # share of samples whose set shall hold the right label
    free_ranks: int = 5  # k_reg, labels that a set may hold without penalty; at most one fewer than there are
    proxy_penalty: float = 0.5  # lambda_0, on every further label in a set of the proxy; grows when accuracy falls
    private_penalty: float = 1.0  # the same for sets of the private model
    margin: float = 0.0  # by which the ranking loss wants labels in the proxy's set above the others
    temperature: Annotated[float, Gt(0)] = 1.0  # T of the divergence, which is multiplied by T^2
    calibration_fraction: Annotated[float, Interval(gt=0, lt=1)] = 0.1  # share of a client's training samples
    calibration_minimum: int = 20  # with fewer held-out samples than this, the training samples calibrate
    kl_reduction: Literal["batchmean", "mean"] = "batchmean"  # mean: the divided divergence of the released code
    ranking_without_effect: bool = False  # a fault of the released code: nothing comes back to the private model

    needs = Needs()
    sends = Sends(
        up="all weights of the shared small model",
        down="all weights of the shared small model, and the name of its architecture",
    )

    def init(self, server: Server) -> None:
        server.state["proxy"] = weights_of(server.build(self.auxiliary or server.smallest.spec))

    def round(self, server: Server, cohort: Cohort) -> None:
        few = [profile.name for profile in server.roster if not self.held_out(profile.samples)]
        if few and server.round == 1:
            server.record("warning", message="label sets are calibrated on training samples", clients=few)
        mean = WeightedMean()
        shared = {"auxiliary": self.auxiliary or server.smallest.spec, "proxy": server.state["proxy"]}
        for _, got in cohort.stream(self.train, shared=shared):
            mean.add(got.weights("proxy"), 1.0)
        server.state["proxy"] = mean.result(server.memory.weights("proxy"))  # w <- mean_k w_k

    @step(down={"auxiliary": ScalarField("text"), "proxy": TreeField()}, up={"proxy": TreeField(like="proxy")})
    def train(self, client: Client, msg: Payload) -> Reply:
        proxy = client.build(msg.text("auxiliary"))
        client.load(msg.weights("proxy"), into=proxy)
        train, others = self.split(client)
        epochs = client.settings.epochs if client.settings.steps is None else 1
        for epoch in range(epochs):
            self.train_private(client, proxy, train, others, epoch)
            self.train_proxy(client, proxy, train, epoch)
        return {"proxy": weights_of(proxy)}

    def held_out(self, samples: int) -> int:
        """How many of a client's samples are kept from training to calibrate on; 0 where they would be too few."""
        count = int(self.calibration_fraction * samples)
        return count if count >= self.calibration_minimum else 0

    def split(self, client: Client) -> tuple[Samples, Samples]:
        """Samples to train on and to calibrate on, the same in every round; all for both where there are few."""
        count = self.held_out(len(client.train))
        if not count:
            return client.train, client.train
        if "order" not in client.state:
            client.state["order"] = torch.randperm(len(client.train), generator=client.stream("held out"))
        order = client.memory.tensor("order")
        return client.train.subset(order[count:].sort().values), client.train.subset(order[:count])

    def train_private(self, client: Client, proxy: nn.Module, train: Samples, others: Samples, epoch: int) -> None:
        """(a) CE(z) + c R: labels in the proxy's set shall be above those outside it, as far as the sets agree."""
        stream = client.stream(f"sets {epoch}")
        right = [torch.zeros(())]

        with frozen(proxy):
            theirs = self.calibrated(proxy, others, self.raised_penalty(client), stream)
            ours = self.calibrated(client.model, others, self.private_penalty, stream)

            def loss(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
                z, z_w = client.model(x), proxy(x)
                right.append((z.argmax(1) == y).sum())
                preferred = theirs.sets(z_w, stream)  # S_w
                agreed = consensus(ours.sets(z.detach(), stream), preferred).mean()  # c
                ranked = z.detach() if self.ranking_without_effect else z
                return F.cross_entropy(z, y), agreed * ranking_loss(ranked, preferred, self.margin).mean()

            done = self.turn(client, loss, client.model, train, f"private {epoch}")
        if done.samples:
            accuracy = float(torch.stack(right).sum()) / done.samples
            before = client.memory.number("accuracy") if "accuracy" in client.state else accuracy
            client.state |= {"accuracy": accuracy, "fell": max(0.0, before - accuracy)}

    def train_proxy(self, client: Client, proxy: nn.Module, train: Samples, epoch: int) -> None:
        """(b) CE(z_w) + T^2 KL(sg[softmax z/T] || softmax z_w/T)."""

        def loss(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            z_w = proxy(x)
            pull = kl_divergence(client.model(x), z_w, temperature=self.temperature, reduction=self.kl_reduction)
            return F.cross_entropy(z_w, y), pull

        with frozen(client.model):
            self.turn(client, loss, proxy, train, f"proxy {epoch}")

    def raised_penalty(self, client: Client) -> float:
        """lambda_0 + (1 - lambda_0) a, where training accuracy fell by a in the last epoch."""
        fell = client.memory.number("fell") if "fell" in client.state else 0.0
        return self.proxy_penalty + (1 - self.proxy_penalty) * fell

    def turn(self, client: Client, loss: Loss, model: nn.Module, train: Samples, purpose: str) -> Fit:
        """One epoch, or the steps of the config where it counts by them."""
        return client.fit(
            loss, samples=train, modules=[model], epochs=1, steps=client.settings.steps, purpose=purpose
        )

    def calibrated(self, model: nn.Module, samples: Samples, penalty: float, stream: torch.Generator) -> Conformal:
        """The rule from a model's logits to sets of labels."""
        with frozen(model):
            z = torch.cat([model(x) for x, _ in samples.batches(EVALUATION_BATCH)])
        return calibrated(
            z, samples.labels, coverage=self.coverage, penalty=penalty, free_ranks=self.free_ranks, stream=stream
        )
