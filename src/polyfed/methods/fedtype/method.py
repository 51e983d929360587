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
from polyfed.methods.fedtype.conformal import Conformal, calibrated, consensus, fractions, ranking_loss
from polyfed.training import Fit, Loss, Samples
from polyfed.training.losses import kl_divergence
from polyfed.training.multi_module import frozen
from polyfed.training.random_draws import Draw
from polyfed.training.samples import EVALUATION_BATCH


@register("fedtype")
@dataclass(frozen=True)
class FedType(Method):
    """FedType: a small proxy model is shared. It distils from the private model, which learns from its label sets.

    The ranking loss of the private model is a reconstruction of the paper's description. In the released code it uses
    only detached outputs of the proxy, so it has no gradient, and its sign is reversed; `ranking_without_effect`
    reproduces that, and results with it measure only the path from private model to proxy. Label sets are calibrated
    on held-out samples. The released code also trains on them, so it cannot guarantee their coverage. If a client has
    too few samples to hold out a tenth, its training samples are used here as well, and the run records a warning.
    The divergence is not divided by the number of classes (`kl_reduction: mean` does that). Private model and proxy
    alternate by local epochs, each with a new optimiser. Label sets are calibrated once a round, as in the released
    code; `calibrate: epoch` does it again before every epoch.

    A client is measured with its private model after training. Results: docs/leaderboard.md.
    """

    auxiliary: str | None = None  # architecture of the proxy; none: the smallest client model
    coverage: Annotated[float, Interval(gt=0, lt=1)] = 0.9  # probability that a set has the true label
    free_ranks: int = 5  # k_reg, set size without penalty; at most one fewer than there are classes
    proxy_penalty: float = 0.5  # lambda_0, penalty per further label in sets of the proxy; grows when accuracy falls
    private_penalty: float = 1.0  # the same for sets of the private model
    margin: float = 0.0  # margin of the ranking loss between labels in the set of the proxy and calibration
    temperature: Annotated[float, Gt(0)] = 1.0  # T of the divergence, which is multiplied by T^2
    calibration_fraction: Annotated[float, Interval(gt=0, lt=1)] = 0.1  # held-out share of the training samples
    calibration_minimum: int = 20  # with fewer held-out samples, the training samples are used to calibrate
    calibrate: Literal["round", "epoch"] = "round"  # how often label sets are calibrated
    kl_reduction: Literal["batchmean", "mean"] = "batchmean"  # mean: divide by the number of classes too, as released
    ranking_without_effect: bool = False  # reproduce a fault of the released code: no gradient to the private model

    verdict = "Level with local training in personal accuracy; costs a second model per client."
    needs = Needs()
    sends = Sends(
        up="all weights of the shared small model",
        down="all weights of the shared small model, and the name of its architecture",
        kinds=("shared-model",),
    )
    averaged = ("proxy",)

    def init(self, server: Server) -> None:
        server.state["proxy"] = weights_of(server.build(self.auxiliary or server.smallest.spec))

    def round(self, server: Server, cohort: Cohort) -> None:
        small = [profile.name for profile in server.roster if not self.held_out(profile.samples)]
        if small and server.round == 1:
            server.record("warning", message="label sets are calibrated on training samples", clients=small)
        mean = WeightedMean(server.aggregation)
        shared = {"auxiliary": self.auxiliary or server.smallest.spec, "proxy": server.state["proxy"]}
        for _, reply in cohort.stream(self.train, shared=shared):
            mean.add(reply.weights("proxy"), 1.0)
        server.state["proxy"] = mean.result(server.memory.weights("proxy"))  # w <- mean_k w_k

    @step(down={"auxiliary": ScalarField("text"), "proxy": TreeField()}, up={"proxy": TreeField(like="proxy")})
    def train(self, client: Client, msg: Payload) -> Reply:
        proxy = client.build(msg.text("auxiliary"))
        client.load(msg.weights("proxy"), into=proxy)
        train, calibration = self.split(client)
        epochs = client.settings.epochs if client.settings.steps is None else 1
        rules: tuple[Conformal, Conformal] | None = None
        for epoch in range(epochs):
            stream = client.stream(f"sets {epoch}")
            if rules is None or self.calibrate == "epoch":
                rules = self.label_set_rules(client, proxy, calibration, stream)
            self.train_private(client, proxy, train, rules, stream, epoch)
            self.train_proxy(client, proxy, train, epoch)
        return {"proxy": weights_of(proxy)}

    def held_out(self, samples: int) -> int:
        """Return how many samples of a client are held out for calibration; 0 if they would be too few."""
        count = int(self.calibration_fraction * samples)
        return count if count >= self.calibration_minimum else 0

    def split(self, client: Client) -> tuple[Samples, Samples]:
        """Return samples for training and for calibration, the same in every round; all for both if there are few."""
        count = self.held_out(len(client.train))
        if not count:
            return client.train, client.train
        if "order" not in client.state:
            client.state["order"] = torch.randperm(len(client.train), generator=client.stream("held out"))
        order = client.memory.tensor("order")
        return client.train.subset(order[count:].sort().values), client.train.subset(order[:count])

    def label_set_rules(
        self, client: Client, proxy: nn.Module, calibration: Samples, stream: torch.Generator
    ) -> tuple[Conformal, Conformal]:
        """Return the calibrated rules for label sets of the proxy and of the private model."""
        with frozen(proxy):
            proxy_rule = self.calibrated(proxy, calibration, self.raised_penalty(client), stream)
            return proxy_rule, self.calibrated(client.model, calibration, self.private_penalty, stream)

    def train_private(
        self,
        client: Client,
        proxy: nn.Module,
        train: Samples,
        rules: tuple[Conformal, Conformal],
        stream: torch.Generator,
        epoch: int,
    ) -> None:
        """(a) Train on CE(z) + c R: rank labels in the set of the proxy above others; c is the agreement of sets."""
        correct: list[Tensor] = []
        proxy_rule, private_rule = rules

        with frozen(proxy):

            def draw(batch: int) -> tuple[Tensor, Tensor]:
                return fractions(batch, stream), fractions(batch, stream)

            def loss(x: Tensor, y: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
                z, z_w = client.model(x), proxy(x)
                correct.append((z.argmax(1) == y).sum())
                preferred = proxy_rule.sets(z_w, first)  # S_w
                agreement = consensus(private_rule.sets(z.detach(), second), preferred).mean()  # c
                ranked = z.detach() if self.ranking_without_effect else z
                return F.cross_entropy(z, y), agreement * ranking_loss(ranked, preferred, self.margin).mean()

            result = self.train_turn(client, loss, client.model, train, f"private {epoch}", draw)
        if result.samples:
            accuracy = float(torch.stack(correct).sum()) / result.samples
            previous = client.memory.number("accuracy") if "accuracy" in client.state else accuracy
            client.state |= {"accuracy": accuracy, "fell": max(0.0, previous - accuracy)}

    def train_proxy(self, client: Client, proxy: nn.Module, train: Samples, epoch: int) -> None:
        """(b) Train on CE(z_w) + T^2 KL(sg[softmax z/T] || softmax z_w/T)."""

        def loss(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            z_w = proxy(x)
            target = client.model(x)
            divergence = kl_divergence(target, z_w, temperature=self.temperature, reduction=self.kl_reduction)
            return F.cross_entropy(z_w, y), divergence

        with frozen(client.model):
            self.train_turn(client, loss, proxy, train, f"proxy {epoch}")

    def raised_penalty(self, client: Client) -> float:
        """Return lambda_0 + (1 - lambda_0) a, where a is the drop of training accuracy in the last epoch."""
        fell = client.memory.number("fell") if "fell" in client.state else 0.0
        return self.proxy_penalty + (1 - self.proxy_penalty) * fell

    def train_turn(
        self,
        client: Client,
        loss: Loss,
        model: nn.Module,
        train: Samples,
        purpose: str,
        draw: Draw | None = None,
    ) -> Fit:
        """Train for one epoch, or for `train.steps` steps if the config sets them."""
        steps = client.settings.steps
        return client.fit(loss, samples=train, modules=[model], epochs=1, steps=steps, purpose=purpose, draw=draw)

    def calibrated(self, model: nn.Module, samples: Samples, penalty: float, stream: torch.Generator) -> Conformal:
        """Return the calibrated rule from logits of a model to sets of labels."""
        with frozen(model):
            z = torch.cat([model(x) for x, _ in samples.batches(EVALUATION_BATCH)])
        return calibrated(
            z, samples.labels, coverage=self.coverage, penalty=penalty, free_ranks=self.free_ranks, stream=stream
        )
