"""FedDistill (FD): communication-efficient on-device learning by federated distillation.

Jeong, Oh, Kim, Park, Bennis, Kim; arXiv 1811.11479, 2018, Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor

from polyfed.core import ClassTable, Client, Cohort, Method, Needs, Payload, Reply, Sends, Server, register, step
from polyfed.core.class_tables import LastClassMeans, mean_over_clients
from polyfed.core.options import Degenerate
from polyfed.core.schema import OptionIs, TableField
from polyfed.training.losses import masked_mean


@register("feddistill", "fd")
@dataclass(frozen=True)
class FedDistill(Method):
    """FedDistill: clients share the mean output of their model per class, and distil from the means of other clients.

    The target of a client is the mean over the *other* clients (`leave_one_out`), so there is no target for a class
    that only this client has reported. Popular libraries pass the averaged logits to a cross-entropy as if they were
    probabilities, which is unbounded below; here the target is their softmax. A class that no client reports keeps
    its last rows. The paper averages softmax outputs of training batches (`outputs: probabilities` with
    `collect: online`); here logits are averaged after training, which makes no difference in accuracy.

    A client is measured with the model that it has just trained. Results: docs/leaderboard.md.
    """

    guidance: Annotated[float, Ge(0), Degenerate(0)] = 1.0  # lambda, weight of the distillation loss
    metric: Literal["ce", "mse"] = "ce"  # compare probabilities (cross-entropy) or logits
    leave_one_out: bool = True  # leave the client's own outputs out of its target
    collect: Literal["after", "online"] = "after"  # compute means after training, or in its last epoch
    outputs: Literal["logits", "probabilities"] = "logits"  # what is averaged: outputs before or after softmax
    min_class_count: int = 1  # do not send classes with fewer samples
    allow_degenerate: bool = False  # accept guidance 0, which is local training

    verdict = "Costs almost no bytes and does no harm; gains over local training are within the noise."
    needs = Needs()
    sends = Sends(
        up="mean output per class, with counts",
        down="mean output per class over other clients",
        kinds=("class-outputs", "counts"),
    )
    averaged = ("outputs",)

    def round(self, server: Server, cohort: Cohort) -> None:
        last = {name: server.memory.table(name) for name in server.state}  # rows of every client
        if self.leave_one_out:
            each = {k: {"outputs": self.mean(server, last, without=k)} for k in cohort.ids}
            replies = cohort.call(self.train, each=each)
        else:
            replies = cohort.call(self.train, shared={"outputs": self.mean(server, last)})
        reported = {name: reply.table("outputs").without_counts() for name, reply in replies.items()}
        new_classes = {c for table in reported.values() for c in table.classes.tolist()}
        for name, table in last.items():  # rows of this round replace all older rows of the same class
            older = table.only(c for c in table.classes.tolist() if c not in new_classes)
            reported[name] = older.updated(reported[name]) if name in reported else older
        server.state = {p.name: reported[p.name] for p in server.roster if len(reported.get(p.name, ()))}

    def mean(self, server: Server, tables: dict[str, ClassTable], without: str | None = None) -> ClassTable:
        """Return the unweighted mean per class over clients; (M g_c - g_kc) / (M - 1) without client k."""
        others = [table for name, table in tables.items() if name != without]
        return mean_over_clients(others, width=server.classes, rule=server.aggregation)

    @step(  # online outputs depend on whole batches (BatchNorm), not on single samples
        down={"outputs": TableField("classes")},
        up={"outputs": TableField("classes", counts=True, by_sample=OptionIs("collect", "after"))},
    )
    def train(self, client: Client, msg: Payload) -> Reply:
        target, known = msg.table("outputs").dense(client.classes)
        online = LastClassMeans(client.classes, len(client.train))

        def loss(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            z = client.model(x)
            if self.collect == "online":
                online.add(self.sent(z), y)
            if self.metric == "ce":
                teacher = target[y] if self.outputs == "probabilities" else target[y].softmax(1)
                distance = soft_cross_entropy(z, teacher)  # H(softmax G_y, softmax z)
            else:
                distance = F.mse_loss(self.sent(z), target[y], reduction="none").mean(1)
            return F.cross_entropy(z, y), self.guidance * masked_mean(distance, known[y])

        client.fit(loss)
        if self.collect == "online":
            return {"outputs": online.table(client.classes, min_count=self.min_class_count)}
        means = client.class_means(
            lambda x: self.sent(client.model(x)), client.classes, min_count=self.min_class_count
        )
        return {"outputs": means}

    def sent(self, logits: Tensor) -> Tensor:
        """Return the outputs that are averaged."""
        return logits.softmax(1) if self.outputs == "probabilities" else logits


def soft_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Return the cross-entropy of softmax(logits) against a target distribution, per sample."""
    return -(target * logits.log_softmax(1)).sum(1)
