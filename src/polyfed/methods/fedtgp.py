"""FedTGP: trainable global prototypes with adaptive-margin-enhanced contrastive learning.

Zhang, Liu, Hua, Cao; AAAI 2024, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor, nn

from polyfed.core import (
    ClassTable,
    Client,
    Cohort,
    Method,
    Needs,
    Outgoing,
    Payload,
    Reply,
    Sends,
    Server,
    Value,
    register,
    rng,
    step,
)
from polyfed.core.class_tables import mean_over_clients
from polyfed.core.client import copy_into, weights_of
from polyfed.core.options import Degenerate
from polyfed.core.row_training import fit_rows
from polyfed.core.schema import TableField
from polyfed.training import TrainSettings
from polyfed.training.losses import masked_mean


@register("fedtgp")
@dataclass(frozen=True)
class FedTGP(Method):
    """FedTGP: the server trains prototypes separated by a margin, and clients pull their features towards them.

    Clients send the class means of the model that they have just trained; popular implementations send those of the
    previous round (`stale_prototypes: true` reproduces that). The margin is the largest distance between a class mean
    and its nearest neighbour, as in the released code; `margin: pair-max` follows the paper's text. Every class has a
    prototype after the first round, whether it was reported or not. In the first round clients train without
    prototypes.

    Clients are measured with the prototypes that the server has trained in this round, as the authors do. The
    accuracy "by previous prototypes" is with those that the clients have trained with, "by head" is that of their
    heads. Short runs end below local training, because the prototypes still move in every round. Results:
    docs/leaderboard.md.
    """

    guidance: Annotated[float, Ge(0), Degenerate(0)] = 10.0  # lambda, weight of the distance to the prototypes
    margin: Literal["nn-max", "pair-max"] = "nn-max"  # largest distance between nearest class means, or between all
    largest_margin: float = 100.0  # tau, upper bound of the margin
    server_lr: Annotated[float, Ge(0), Degenerate(0)] = 0.01  # learning rate of the prototypes (plain SGD)
    server_epochs: Annotated[int, Ge(0), Degenerate(0)] = 100  # E_s, epochs over the reported means per round
    server_batch: int = 10  # reported means per batch
    predict_with: Literal["prototype", "head"] = "prototype"  # the nearest prototype, or the client's head
    min_class_count: int = 1  # do not send classes with fewer samples
    stale_prototypes: bool = False  # reproduce a fault of released code: means from before the local training
    allow_degenerate: bool = False  # accept guidance 0, which is local training, and 0 for server training

    verdict = "Tiny messages; better prototypes than FedProto, level with local training after enough rounds."
    needs = Needs(same_features=True, same_classes=True)
    sends = Sends(
        up="mean feature per class, with counts",
        down="trained prototype of every class",
        kinds=("class-means", "counts"),
    )

    def init(self, server: Server) -> None:
        server.state["trainable"] = weights_of(new_prototypes(server))
        server.state["prototypes"] = ClassTable.empty(server.features).without_counts()

    def round(self, server: Server, cohort: Cohort) -> None:
        replies = cohort.call(self.train, shared={"prototypes": server.state["prototypes"]})
        self.train_prototypes(server, [reply.table("prototypes") for reply in replies.values()])

    @step(
        down={"prototypes": TableField("features")},
        up={"prototypes": TableField("features", counts=True, by_sample=True)},
    )
    def train(self, client: Client, msg: Payload) -> Reply:
        client.state["prototypes"] = msg["prototypes"]
        prototypes, known = msg.table("prototypes").dense(client.classes)
        stale = self.class_means(client) if self.stale_prototypes else None

        def loss(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            f = client.model.features(x)
            distance = F.mse_loss(f, prototypes[y], reduction="none").mean(1)  # |f - T_y|^2 / d
            return F.cross_entropy(client.model.head(f), y), self.guidance * masked_mean(distance, known[y])

        client.fit(loss)
        return {"prototypes": self.class_means(client) if stale is None else stale}

    def class_means(self, client: Client) -> ClassTable:
        width = client.profile.features
        return client.class_means(client.model.features, width, min_count=self.min_class_count)

    def train_prototypes(self, server: Server, tables: Sequence[ClassTable]) -> None:
        """Train for E_s epochs with the margin loss on the reported pairs (v, c)."""
        if not any(len(table) for table in tables):
            return
        prototypes = new_prototypes(server)
        copy_into(prototypes, server.memory.weights("trainable"))
        delta = self.margin_between(mean_over_clients(tables, width=server.features).values)  # of the means Q_c

        def loss(v: Tensor, c: Tensor) -> Tensor:
            return margin_loss(v, c, prototypes(), delta)

        settings = TrainSettings(epochs=self.server_epochs, batch_size=self.server_batch, lr=self.server_lr)
        fit_rows([prototypes], loss, tables, settings, server.stream("prototypes"))
        server.state["trainable"] = weights_of(prototypes)
        server.state["prototypes"] = ClassTable(
            torch.arange(server.classes, device=server.device), prototypes().detach()
        )

    def margin_between(self, means: Tensor) -> float:
        """Return delta = min(m, tau), with m from the distances between class means; tau for a single mean."""
        if len(means) < 2:
            return self.largest_margin
        between = distances(means, means)
        between.fill_diagonal_(torch.inf if self.margin == "nn-max" else 0.0)
        margins = between.amin(1) if self.margin == "nn-max" else between.amax(1)
        return min(float(margins.max()), self.largest_margin)

    def publish(self, server: Server) -> Outgoing:
        return Outgoing({"prototypes": server.state["prototypes"]})

    def adopt(self, client: Client, msg: Payload) -> None:
        client.state["new prototypes"] = msg["prototypes"]

    def predict(self, client: Client, x: Tensor) -> Tensor:
        if self.predict_with == "head":
            return super().predict(client, x)
        return self.nearest(client, client.state.get("new prototypes"), x)

    def predict_previous(self, client: Client, x: Tensor) -> Tensor:
        return self.nearest(client, client.state.get("prototypes"), x)

    def nearest(self, client: Client, table: Value, x: Tensor) -> Tensor:
        """Return the negative distances to prototypes, or logits as long as there are none."""
        if not isinstance(table, ClassTable) or len(table) == 0:
            return super().predict(client, x)
        return -torch.cdist(client.model.features(x), table.values)  # every class has a row

    def predicts_probabilities(self, way: str = "") -> bool:
        return way == "head" or (way == "" and self.predict_with == "head")

    def also_predict(self) -> Mapping[str, Callable[[Client, Tensor], Tensor]]:
        return {"head": super().predict, "previous prototypes": self.predict_previous}


class TrainablePrototypes(nn.Module):
    """One vector per class, transformed by two layers: T = W_2 relu(W_1 t + b_1) + b_2."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.vectors = nn.Embedding(classes, width)
        self.layers = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self) -> Tensor:
        prototypes: Tensor = self.layers(self.vectors.weight)
        return prototypes


def new_prototypes(server: Server) -> TrainablePrototypes:
    with rng.seeded(server.seed, "prototypes"):
        return TrainablePrototypes(server.classes, server.features).to(server.device)


def margin_loss(v: Tensor, c: Tensor, prototypes: Tensor, delta: float) -> Tensor:
    """Return -log softmax_j(-|v - T_j| - delta [j = c])_c: the true prototype must be nearer by delta."""
    return F.cross_entropy(-distances(v, prototypes) - delta * F.one_hot(c, len(prototypes)), c)


def distances(a: Tensor, b: Tensor) -> Tensor:
    """Return Euclidean distances between all rows, bounded away from 0, where the gradient of sqrt is infinite."""
    return (a[:, None] - b[None]).square().sum(2).clamp(min=1e-12).sqrt()
