"""FedGen: data-free knowledge distillation for heterogeneous federated learning.

Zhu, Hong, Zhou; ICML 2021, Algorithm 1, as adapted to different models: LG-FedAvg plus a generator of features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor, nn
from torch.func import functional_call, vmap

from polyfed.core import Client, Cohort, Method, Needs, Payload, Reply, Sends, Server, rng
from polyfed.core.averaging import WeightedMean
from polyfed.core.client import copy_into, weights_of
from polyfed.core.method import register
from polyfed.core.options import Degenerate
from polyfed.core.schema import ScalarField, TensorField, TreeField, WeightsField
from polyfed.core.step import step
from polyfed.methods.fedgen.optimizer_state import memory_of, recall
from polyfed.training.fit import TrainSettings, make_optimizer


@register("fedgen")
@dataclass(frozen=True)
class FedGen(Method):
    """FedGen: heads are averaged, and a generator that makes features for them all teaches every head.

    The paper averages whole models; this is the variant for different models, in which extractors stay at home. A
    popular library never keeps the generator that it trained, so that its clients learn from an untrained one for
    ever (`untrained_generator: true` does that), makes a new optimiser every round and leaves the generator in
    training mode at clients. Here it is kept with its Adam, and frozen in evaluation mode at clients. A client sends
    its exact label counts once, a privacy cost; the server tells all the pooled shares, by which labels are drawn.
    Nothing is generated in round 1, when no counts are known.

    On the quickstart it ends where LG-FedAvg does (83, 85 and 91 % against 84, 85 and 91 % over seeds 0 to 2): the
    generator pleases every head within a round (its loss is below 0.001), and then teaches them little.
    """

    guidance: Annotated[float, Ge(0), Degenerate(0)] = 1.0  # gamma, weight of the loss on generated features
    weights: Literal["samples", "uniform"] = "samples"  # p_k, how clients count in the head and for the generator
    labels_of: Literal["everyone", "participants"] = "everyone"  # whose classes generated labels follow
    noise: int = 32  # numbers of noise that go into a generated feature, uniform in [0, 1)
    hidden: int = 512  # width of the generator's hidden layer
    generator_lr: Annotated[float, Ge(0), Degenerate(0)] = 0.005  # learning rate of the generator (Adam)
    generator_steps: Annotated[int, Ge(0), Degenerate(0)] = 100  # steps of the generator in a round
    generator_batch: Annotated[int, Ge(2)] = 10  # generated features in a step of the server
    untrained_generator: bool = False  # a fault of a popular library: clients always get the initial generator
    allow_degenerate: bool = False  # accept guidance 0, which is LG-FedAvg

    needs = Needs(same_head=True, same_features=True)
    sends = Sends(
        up="weights of the head, the number of samples, and once the number of samples per class",
        down="weights of the head and of a feature generator, and the pooled share of every class",
    )

    def init(self, server: Server) -> None:
        server.state["head"] = weights_of(server.build(server.roster[0].spec).head)
        server.state["generator"] = weights_of(self.generator(server.seed, server.classes, server.features))
        server.state["adam"] = {}
        server.state["labels"] = {}

    def round(self, server: Server, cohort: Cohort) -> None:
        sent = {name: server.state[name] for name in ("head", "generator")}
        mean, heads, samples = WeightedMean(), [], []
        for name, got in cohort.stream(self.train, shared={**sent, "shares": self.pooled(server, cohort)}):
            heads.append(got.weights("head"))
            samples.append(got.number("samples") if self.weights == "samples" else 1.0)
            mean.add(heads[-1], samples[-1])
            told = got.get("labels")  # once from every client
            if told is not None:
                server.state["labels"] = {**server.memory.weights("labels"), name: told}
        cohort.measure("personal", "global")  # clients are evaluated while the server trains
        server.state["head"] = mean.result(server.memory.weights("head"))  # h <- sum_k p_k h_k
        shares = self.pooled(server, cohort)
        if sum(samples) > 0 and shares.any() and not self.untrained_generator:
            self.train_generator(server, heads, torch.tensor(samples) / sum(samples), shares)

    @step(
        down={"head": WeightsField("head"), "generator": TreeField(), "shares": TensorField(("classes",))},
        up={
            "head": WeightsField("head"),
            "samples": ScalarField(least=0),
            "labels": TensorField(("classes",), torch.int32, optional=True),
        },
    )
    def train(self, client: Client, msg: Payload) -> Reply:
        client.load(msg.weights("head"), into=client.model.head)
        generator = self.received(client, msg)
        shares, draw = msg.tensor("shares"), client.stream("generated")

        def loss(x: Tensor, y: Tensor) -> Tensor | tuple[Tensor, Tensor]:
            task = client.cross_entropy(x, y)
            if not shares.any():
                return task
            wanted, f = generator.draw(shares, client.settings.batch_size, draw)  # y~, G(y~, eps)
            return task, self.guidance * F.cross_entropy(client.model.head(f), wanted)

        client.fit(loss)
        reply: Reply = {"head": weights_of(client.model.head), "samples": len(client.train)}
        if "counted" in client.state:
            return reply
        client.state["counted"] = True
        return {**reply, "labels": torch.bincount(client.train.labels, minlength=client.classes).int()}

    def received(self, client: Client, msg: Payload) -> FeatureGenerator:
        """The server's generator as a teacher: frozen, in evaluation mode (R4)."""
        generator = self.generator(client.seed, client.classes, client.profile.features)
        copy_into(generator, msg.weights("generator"))
        return generator.eval().requires_grad_(False)

    def pooled(self, server: Server, cohort: Cohort) -> Tensor:
        """Share of every class among the samples of clients that have told theirs; all 0 as long as none has."""
        told = server.memory.weights("labels")
        chosen = [told[name] for name in (cohort.ids if self.labels_of == "participants" else told) if name in told]
        counts = sum((t.double().clamp(min=0) for t in chosen), torch.zeros(server.classes, dtype=torch.float64))
        return (counts / counts.sum().clamp(min=1)).float()

    def train_generator(self, server: Server, heads: Sequence[dict[str, Tensor]], p: Tensor, shares: Tensor) -> None:
        """min over G of CE(sum_k p_k h_k(G(y, eps)), y), with y drawn by the shares of classes."""
        generator = self.generator(server.seed, server.classes, server.features)
        copy_into(generator, server.memory.weights("generator"))
        optimizer = make_optimizer(generator.parameters(), TrainSettings(optimizer="adam", lr=self.generator_lr))
        recall(optimizer, server.memory.weights("adam"))
        head, draw = server.build(server.roster[0].spec).head.eval(), server.stream("generator")
        stacked = {name: torch.stack([h[name] for h in heads]) for name in heads[0]}
        for _ in range(self.generator_steps):
            y, f = generator.draw(shares, self.generator_batch, draw)
            z = vmap(lambda h, f=f: functional_call(head, h, (f,)))(stacked)  # of every h_k
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(torch.einsum("k,kbc->bc", p, z), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        server.state["generator"], server.state["adam"] = weights_of(generator), memory_of(optimizer)

    def generator(self, seed: int, classes: int, features: int) -> FeatureGenerator:
        with rng.seeded(seed, "generator"):
            return FeatureGenerator(classes, self.noise, self.hidden, features)


class FeatureGenerator(nn.Module):
    """G(y, eps): from a label and uniform noise to a feature."""

    def __init__(self, classes: int, noise: int, hidden: int, features: int) -> None:
        super().__init__()
        self.noise = noise
        self.layers = nn.Sequential(
            nn.Linear(classes + noise, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, features)
        )

    def draw(self, shares: Tensor, number: int, stream: torch.Generator) -> tuple[Tensor, Tensor]:
        """Labels that follow the shares of classes, and a feature for each."""
        labels = torch.multinomial(shares, number, replacement=True, generator=stream)
        noise = torch.rand(number, self.noise, generator=stream)
        features: Tensor = self.layers(torch.cat([F.one_hot(labels, len(shares)).float(), noise], 1))
        return labels, features
