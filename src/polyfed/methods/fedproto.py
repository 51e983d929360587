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
from polyfed.core.class_tables import ClassMeans, mean_over_clients
from polyfed.core.options import Degenerate
from polyfed.core.schema import OptionIs, TableField
from polyfed.training.losses import masked_mean


@register("fedproto")
@dataclass(frozen=True)
class FedProto(Method):
    """FedProto: clients share one mean feature per class, and pull their features towards the global ones.

    The pull is the element-wise mean square (the paper writes a distance). Clients count alike in a prototype, as in
    the released code; `weights: counts` is the paper's text. Prototypes come from a clean pass after training
    (`collect: after`), not from the features seen while training. A class that nobody reports keeps its prototype.

    On ten rounds of digits with four architectures, prediction by prototype ends some 34 points below local training:
    prototypes averaged over extractors that the pull has not aligned yet lie far from any client's own features. The
    heads of the same models are level with local training; both are measured.
    """

    guidance: Annotated[float, Ge(0), Degenerate(0)] = 1.0  # lambda, weight of the regulariser; later papers use 10
    weights: Literal["uniform", "counts"] = "uniform"  # how clients count in a prototype
    collect: Literal["after", "online"] = "after"  # features of a clean pass, or those seen while training
    predict_with: Literal["prototype", "head"] = "prototype"  # nearest global prototype, or the client's head
    min_class_count: int = 1  # classes with fewer samples are not sent
    allow_degenerate: bool = False  # accept guidance 0, which trains as local training does

    needs = Needs(same_features=True, same_classes=True)
    sends = Sends(up="mean feature per class, with counts", down="mean feature per class over all clients")

    def init(self, server: Server) -> None:
        server.state["prototypes"] = ClassTable.empty(server.features).without_counts()

    def round(self, server: Server, cohort: Cohort) -> None:
        known = server.memory.table("prototypes")
        got = cohort.call(self.train, shared={"prototypes": known})
        tables = [reply.table("prototypes") for reply in got.values()]
        fresh = mean_over_clients(tables, width=server.features, by_count=self.weights == "counts")  # P_c
        server.state["prototypes"] = known.updated(fresh)

    @step(  # features seen during training depend on whole batches (BatchNorm), not on single samples
        down={"prototypes": TableField("features")},
        up={"prototypes": TableField("features", counts=True, by_sample=OptionIs("collect", "after"))},
    )
    def train(self, client: Client, msg: Payload) -> Reply:
        client.state["prototypes"] = msg["prototypes"]
        prototypes, known = msg.table("prototypes").dense(client.classes)
        online = ClassMeans(client.classes)

        def loss(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            f = client.model.features(x)
            online.add(f, y)
            pull = F.mse_loss(f, prototypes[y], reduction="none").mean(1)  # |f - P_y|^2 / d
            return F.cross_entropy(client.model.head(f), y), self.guidance * masked_mean(pull, known[y])

        client.fit(loss)
        if self.collect == "online":
            return {"prototypes": online.table(client.profile.features, min_count=self.min_class_count)}
        means = client.class_means(client.model.features, client.profile.features, min_count=self.min_class_count)
        return {"prototypes": means}

    def predict(self, client: Client, x: Tensor) -> Tensor:
        table = client.state.get("prototypes")
        if self.predict_with == "head" or not isinstance(table, ClassTable) or len(table) == 0:
            return super().predict(client, x)  # before the first prototypes there is only the head
        prototypes, known = table.dense(client.classes)
        return -torch.cdist(client.model.features(x), prototypes).masked_fill(~known, float("inf"))

    def also_predict(self) -> Mapping[str, Callable[[Client, Tensor], Tensor]]:
        return {"head": super().predict}
