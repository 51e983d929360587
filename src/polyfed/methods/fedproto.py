"""FedProto: federated prototype learning across heterogeneous clients.

Tan, Long, Liu, Zhou, Lu, Jiang, Zhang; AAAI 2022, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor

from polyfed.core import ClassTable, Client, Cohort, Method, Needs, Payload, Reply, Sends, Server, register, step
from polyfed.core.class_tables import LastClassMeans, among_classes_of, mean_over_clients
from polyfed.core.method import Outgoing
from polyfed.core.options import Degenerate
from polyfed.core.schema import OptionIs, TableField
from polyfed.training.losses import masked_mean


@register("fedproto")
@dataclass(frozen=True)
class FedProto(Method):
    """FedProto: clients share one mean feature per class, and pull their features towards the global means.

    The regulariser is the mean squared error between features and prototypes; the paper writes a distance. Prototypes
    are an unweighted mean over clients, as in the released code; `weights: counts` follows the paper's text, without
    the further division by the number of clients in Eq. 6.
    Prototypes are computed after training in evaluation mode (`collect: after`). `collect: online` takes the features
    of the last epoch of training, which saves a pass over the data. They are normalised by batch, so noise for single
    samples cannot protect them. A class that no client reports keeps its prototype.

    Clients are measured with the prototypes of the round that has just ended, as the authors do: on their own test
    samples among their own classes (in the released code), on the common test set among all classes. The accuracy
    "by all classes" is among all classes on both, "by head" is that of the clients' heads. In short runs the features
    of different models are not aligned, and heads are better than prototypes. See docs/leaderboard.md.
    """

    guidance: Annotated[float, Ge(0), Degenerate(0)] = 1.0  # lambda, weight of the regulariser; later papers use 10
    weights: Literal["uniform", "counts"] = "uniform"  # weights of clients in a prototype: equal, or by samples
    collect: Literal["after", "online"] = "after"  # compute prototypes after training, or in its last epoch
    predict_with: Literal["prototype", "head"] = "prototype"  # the nearest global prototype, or the client's head
    min_class_count: int = 1  # do not send classes with fewer samples
    allow_degenerate: bool = False  # accept guidance 0, which is local training

    verdict = "Tiny messages; its heads match local training, its prototypes need many rounds when models differ."
    needs = Needs(same_features=True, same_classes=True)
    sends = Sends(
        up="mean feature per class, with counts",
        down="mean feature per class over all clients",
        kinds=("class-means", "counts"),
    )
    averaged = ("prototypes",)

    def mean_weights(self) -> Mapping[str, str]:
        return {"prototypes": "counts" if self.weights == "counts" else ""}

    def init(self, server: Server) -> None:
        server.state["prototypes"] = ClassTable.empty(server.features).without_counts()

    def round(self, server: Server, cohort: Cohort) -> None:
        prototypes = server.memory.table("prototypes")
        replies = cohort.call(self.train, shared={"prototypes": prototypes})
        tables = [reply.table("prototypes") for reply in replies.values()]
        by_count = self.weights == "counts"
        means = mean_over_clients(tables, width=server.features, by_count=by_count, rule=server.aggregation)  # P_c
        server.state["prototypes"] = prototypes.updated(means)

    @step(  # online features depend on whole batches (BatchNorm), not on single samples
        down={"prototypes": TableField("features")},
        up={"prototypes": TableField("features", counts=True, by_sample=OptionIs("collect", "after"))},
    )
    def train(self, client: Client, msg: Payload) -> Reply:
        client.state["prototypes"] = msg["prototypes"]
        prototypes, known = msg.table("prototypes").dense(client.classes)
        online = LastClassMeans(client.classes, len(client.train))

        def loss(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            f = client.model.features(x)
            online.add(f, y)
            distance = F.mse_loss(f, prototypes[y], reduction="none").mean(1)  # |f - P_y|^2 / d
            return F.cross_entropy(client.model.head(f), y), self.guidance * masked_mean(distance, known[y])

        client.fit(loss)
        width, least = client.profile.features, self.min_class_count
        if self.collect == "online":
            return {"prototypes": online.table(width, min_count=least)}
        return {"prototypes": client.class_means(client.model.features, width, min_count=least)}

    def publish(self, server: Server) -> Outgoing:
        return Outgoing({"prototypes": server.state["prototypes"]})

    def adopt(self, client: Client, msg: Payload) -> None:
        client.state["prototypes"] = msg["prototypes"]

    def predict(self, client: Client, x: Tensor) -> Tensor:
        return super().predict(client, x) if self.predict_with == "head" else self.predict_all_classes(client, x)

    def predict_personal(self, client: Client, x: Tensor) -> Tensor:
        scores = self.predict(client, x)
        return scores if self.predict_with == "head" else among_classes_of(client.train.labels, scores)

    def predict_all_classes(self, client: Client, x: Tensor) -> Tensor:
        """Return the negative distances to all prototypes, or logits as long as there are none."""
        table = client.state.get("prototypes")
        if not isinstance(table, ClassTable) or len(table) == 0:
            return super().predict(client, x)
        prototypes, known = table.dense(client.classes)
        return -torch.cdist(client.model.features(x), prototypes).masked_fill(~known, float("inf"))

    def predicts_probabilities(self, way: str = "") -> bool:
        return way == "head" or (way == "" and self.predict_with == "head")

    def also_predict(self) -> Mapping[str, Callable[[Client, Tensor], Tensor]]:
        return {"head": super().predict, "all classes": self.predict_all_classes}
