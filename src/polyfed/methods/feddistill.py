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
from polyfed.core.class_tables import ClassMeans, mean_over_clients
from polyfed.core.options import Degenerate
from polyfed.core.schema import OptionIs, TableField
from polyfed.training.losses import masked_mean, soft_cross_entropy


@register("feddistill", "fd")
@dataclass(frozen=True)
class FedDistill(Method):
    """FedDistill: clients share the mean output of their model per class, and learn from the others' means.

    A client's target is the mean over the *other* clients (`leave_one_out`), so a class that it alone reported gives
    it none. Popular libraries hand the raw averaged logits to a cross-entropy as if they were probabilities, which is
    unbounded below; here the target is their softmax. A class that nobody reports keeps its last rows.
    """

    guidance: Annotated[float, Ge(0), Degenerate(0)] = 1.0  # lambda, weight of the distillation term
    metric: Literal["ce", "mse"] = "ce"  # compare distributions, or logits
    leave_one_out: bool = True  # a client's own share is taken out of what it receives
    collect: Literal["after", "online"] = "after"  # means of a clean pass, or of the outputs seen while training
    min_class_count: int = 1  # classes with fewer samples are not sent
    allow_degenerate: bool = False  # accept guidance 0, which is local training

    needs = Needs()
    sends = Sends(up="mean output per class, with counts", down="mean output per class over other clients")

    def round(self, server: Server, cohort: Cohort) -> None:
        shares = {name: server.memory.table(name) for name in server.state}  # the rows behind each class, by client
        if self.leave_one_out:
            got = cohort.call(self.train, each={k: {"outputs": self.mean(server, shares, but=k)} for k in cohort.ids})
        else:
            got = cohort.call(self.train, shared={"outputs": self.mean(server, shares)})
        reported = {name: reply.table("outputs").without_counts() for name, reply in got.items()}
        anew = {c for table in reported.values() for c in table.classes.tolist()}
        for name, table in shares.items():  # a class somebody reported now stands on this round's rows alone (R6)
            kept = table.only(c for c in table.classes.tolist() if c not in anew)
            reported[name] = kept.updated(reported[name]) if name in reported else kept
        server.state = {p.name: reported[p.name] for p in server.roster if len(reported.get(p.name, ()))}

    def mean(self, server: Server, shares: dict[str, ClassTable], but: str | None = None) -> ClassTable:
        """Per class the mean over the clients behind it, uniformly; (M g_c - g_kc) / (M - 1) without client k."""
        return mean_over_clients([t for name, t in shares.items() if name != but], width=server.classes)

    @step(  # outputs seen during training depend on whole batches (BatchNorm), not on single samples
        down={"outputs": TableField("classes")},
        up={"outputs": TableField("classes", counts=True, by_sample=OptionIs("collect", "after"))},
    )
    def train(self, client: Client, msg: Payload) -> Reply:
        target, known = msg.table("outputs").dense(client.classes)
        online = ClassMeans(client.classes)

        def loss(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            z = client.model(x)
            online.add(z, y)
            if self.metric == "ce":
                pull = soft_cross_entropy(z, target[y].softmax(1))  # H(softmax G_y, softmax z)
            else:
                pull = F.mse_loss(z, target[y], reduction="none").mean(1)
            return F.cross_entropy(z, y), self.guidance * masked_mean(pull, known[y])

        client.fit(loss)
        if self.collect == "online":
            return {"outputs": online.table(client.classes, min_count=self.min_class_count)}
        return {"outputs": client.class_means(client.model, client.classes, min_count=self.min_class_count)}
