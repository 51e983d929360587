"""FedGen: data-free knowledge distillation for heterogeneous federated learning.

Zhu, Hong, Zhou; ICML 2021, Algorithm 1, as adapted to different models: LG-FedAvg plus a generator of features.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor, nn
from torch.func import functional_call, vmap

from polyfed.core import Client, Cohort, Method, Needs, Outgoing, Payload, Reply, Sends, Server, register, rng, step
from polyfed.core.averaging import WeightedMean
from polyfed.core.client import copy_into, weights_of
from polyfed.core.options import Degenerate
from polyfed.core.schema import ScalarField, TensorField, TreeField, WeightsField
from polyfed.methods.lg_fedavg import adopt_head, predict_with_local_head
from polyfed.training.fit import TrainSettings, make_optimizer
from polyfed.training.optimizer_state import load_tensors, state_tensors
from polyfed.training.random_draws import drawn_ahead


@register("fedgen")
@dataclass(frozen=True)
class FedGen(Method):
    """FedGen: heads are averaged, and a generator of features, trained against all heads, teaches every head.

    The paper averages whole models; this is the variant for different models, in which extractors stay at the
    clients. A popular library discards the trained generator, so that its clients learn from an untrained one
    (`untrained_generator: true` reproduces that), creates a new optimiser in every round, and leaves the generator in
    training mode at clients. Here the generator and the state of its Adam optimiser persist, and clients use it
    frozen in evaluation mode. A client sends its exact label counts once, which is a privacy cost; all clients
    receive the pooled label distribution, from which labels are drawn. Nothing is generated in round 1, when no
    counts are known.

    Clients are measured with the averaged head of the round, as the authors do, and also with the heads that they
    have trained ("by local head"). Results are close to LG-FedAvg: within one round the generator satisfies every
    head, and then teaches them little. See docs/leaderboard.md.
    """

    guidance: Annotated[float, Ge(0), Degenerate(0)] = 1.0  # gamma, weight of the loss on generated features
    weights: Literal["samples", "uniform"] = "samples"  # p_k, weights of clients in the head and for the generator
    labels_of: Literal["everyone", "participants"] = "everyone"  # clients whose label counts are pooled
    noise: int = 32  # size of the noise input, uniform in [0, 1)
    hidden: int = 512  # width of the hidden layer of the generator
    generator_lr: Annotated[float, Ge(0), Degenerate(0)] = 0.005  # learning rate of the generator (Adam)
    generator_steps: Annotated[int, Ge(0), Degenerate(0)] = 100  # generator steps per round
    generator_batch: Annotated[int, Ge(2)] = 10  # generated features per step; BatchNorm needs at least 2
    untrained_generator: bool = False  # reproduce a fault of a popular library: the generator is never trained
    allow_degenerate: bool = False  # accept guidance 0, which is LG-FedAvg, and 0 for generator training

    verdict = "Behaves like LG-FedAvg, because its generator soon satisfies every head; costs more bytes."
    needs = Needs(same_head=True, same_features=True)
    sends = Sends(
        up="weights of the head, the number of samples, and once the number of samples per class",
        down="weights of the head and of a feature generator, and the pooled label distribution",
        kinds=("head", "counts"),
    )
    averaged = ("head",)

    def init(self, server: Server) -> None:
        server.state["head"] = weights_of(server.build(server.roster[0].spec).head)
        server.state["generator"] = weights_of(self.generator(server.seed, server.classes, server.features))
        server.state["adam"] = {}
        server.state["labels"] = {}

    def round(self, server: Server, cohort: Cohort) -> None:
        sent = {name: server.state[name] for name in ("head", "generator")}
        sent["shares"] = self.label_distribution(server, cohort)
        mean, heads, samples = WeightedMean(server.aggregation), [], []
        for name, reply in cohort.stream(self.train, shared=sent):
            heads.append(reply.weights("head"))
            samples.append(reply.number("samples") if self.weights == "samples" else 1.0)
            mean.add(heads[-1], samples[-1])
            counts = reply.get("labels")  # once from every client
            if counts is not None:
                server.state["labels"] = {**server.memory.weights("labels"), name: counts}
        server.state["head"] = mean.result(server.memory.weights("head"))  # h <- sum_k p_k h_k
        cohort.measure("personal", "global")  # clients are evaluated while the server trains the generator
        distribution = self.label_distribution(server, cohort)
        if sum(samples) > 0 and distribution.any() and not self.untrained_generator:
            p = (torch.tensor(samples) / sum(samples)).to(server.device)
            self.train_generator(server, heads, p, distribution)

    @step(
        down={"head": WeightsField("head"), "generator": TreeField(), "shares": TensorField(("classes",))},
        up={
            "head": WeightsField("head"),
            "samples": ScalarField(least=0, most="samples"),
            "labels": TensorField(("classes",), torch.int32, least=0, most="samples", optional=True),
        },
    )
    def train(self, client: Client, msg: Payload) -> Reply:
        client.load(msg.weights("head"), into=client.model.head)
        generator = self.received_generator(client, msg)
        distribution, stream = msg.tensor("shares"), client.stream("generated")

        def loss(x: Tensor, y: Tensor, *drawn: Tensor) -> Tensor | tuple[Tensor, Tensor]:
            task = client.cross_entropy(x, y)
            if not drawn:
                return task
            labels, noise = drawn
            f = generator(labels, noise)  # y~, G(y~, eps)
            return task, self.guidance * F.cross_entropy(client.model.head(f), labels)

        shares, size = distribution.cpu(), client.settings.batch_size
        client.fit(loss, draw=(lambda _: generator.draw(shares, size, stream)) if shares.any() else None)
        reply: Reply = {"head": weights_of(client.model.head), "samples": len(client.train)}
        if "counted" in client.state:
            return reply
        client.state["counted"] = True
        return {**reply, "labels": torch.bincount(client.train.labels, minlength=client.classes).int()}

    def received_generator(self, client: Client, msg: Payload) -> FeatureGenerator:
        """Return the server's generator, frozen and in evaluation mode."""
        generator = self.generator(client.seed, client.classes, client.profile.features).to(client.device)
        copy_into(generator, msg.weights("generator"))
        return generator.eval().requires_grad_(False)

    def publish(self, server: Server) -> Outgoing:
        return Outgoing({"head": server.state["head"]})

    def adopt(self, client: Client, msg: Payload) -> None:
        adopt_head(client, msg)

    def also_predict(self) -> Mapping[str, Callable[[Client, Tensor], Tensor]]:
        return {"local head": predict_with_local_head}

    def label_distribution(self, server: Server, cohort: Cohort) -> Tensor:
        """Return the pooled label distribution of the clients that sent their counts; all 0 if there are none."""
        sent = server.memory.weights("labels")
        chosen = [sent[name] for name in (cohort.ids if self.labels_of == "participants" else sent) if name in sent]
        none = torch.zeros(server.classes, dtype=torch.float64, device=server.device)
        counts = sum((t.double().clamp(min=0) for t in chosen), none)
        return (counts / counts.sum().clamp(min=1)).float()

    def train_generator(
        self, server: Server, heads: Sequence[dict[str, Tensor]], p: Tensor, distribution: Tensor
    ) -> None:
        """Minimise CE(sum_k p_k h_k(G(y, eps)), y) over G, with y drawn from the label distribution."""
        generator = self.generator(server.seed, server.classes, server.features).to(server.device)
        copy_into(generator, server.memory.weights("generator"))
        optimizer = make_optimizer(generator.parameters(), TrainSettings(optimizer="adam", lr=self.generator_lr))
        load_tensors(optimizer, server.memory.weights("adam"))
        head, stream = server.build(server.roster[0].spec).head.eval(), server.stream("generator")
        stacked = {name: torch.stack([h[name] for h in heads]) for name in heads[0]}
        shares, sizes = distribution.cpu(), [self.generator_batch] * self.generator_steps
        for y, noise in drawn_ahead(lambda size: generator.draw(shares, size, stream), sizes, server.device):
            f = generator(y, noise)
            z = vmap(lambda h, f=f: functional_call(head, h, (f,)))(stacked)  # logits of every h_k
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(torch.einsum("k,kbc->bc", p, z), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        server.state["generator"], server.state["adam"] = weights_of(generator), state_tensors(optimizer)

    def generator(self, seed: int, classes: int, features: int) -> FeatureGenerator:
        with rng.seeded(seed, "generator"):
            return FeatureGenerator(classes, self.noise, self.hidden, features)


class FeatureGenerator(nn.Module):
    """G(y, eps): a feature from a label and uniform noise."""

    def __init__(self, classes: int, noise: int, hidden: int, features: int) -> None:
        super().__init__()
        self.classes, self.noise = classes, noise
        self.layers = nn.Sequential(
            nn.Linear(classes + noise, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, features)
        )

    def draw(self, distribution: Tensor, number: int, stream: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw labels from the label distribution, and noise for each."""
        labels = torch.multinomial(distribution, number, replacement=True, generator=stream)
        return labels, torch.rand(number, self.noise, generator=stream)

    def sample(self, distribution: Tensor, number: int, stream: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw labels from the label distribution, and generate a feature for each."""
        labels, noise = self.draw(distribution, number, stream)
        return labels, self(labels, noise)

    def forward(self, labels: Tensor, noise: Tensor) -> Tensor:
        """Return a feature for every label."""
        features: Tensor = self.layers(torch.cat([F.one_hot(labels, self.classes).float(), noise], 1))
        return features
