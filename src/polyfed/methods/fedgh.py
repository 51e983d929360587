"""FedGH: heterogeneous federated learning with generalized global header.

Yi, Wang, Liu, Shi, Yu; ACM Multimedia 2023, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt, Interval
from torch import Tensor
from torch.func import functional_call

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
    register,
    step,
)
from polyfed.core.client import copy_into, weights_of
from polyfed.core.options import Degenerate
from polyfed.core.row_training import fit_rows
from polyfed.core.schema import TableField, WeightsField
from polyfed.training import TrainSettings


@register("fedgh")
@dataclass(frozen=True)
class FedGH(Method):
    """FedGH: the server trains one head on the clients' class means, and every client starts from that head.

    The released code steps the optimiser of the last client instead of the header's, so the header keeps its initial
    weights (`untrained_head: true` reproduces that), and it averages the means of unequal batches. Here the head is
    trained, and a class mean is computed over all samples, after training, in evaluation mode. Training also lowers
    the logits of classes that no client reported, as published; `mask_missing` leaves them out. The server's
    optimiser is that of the authors: one class mean per step, with momentum, weight decay and clipping.

    Clients are measured with the heads that they have trained. The accuracy "by server head" is that of the same
    models with the head that the server has trained in this round. Results: docs/leaderboard.md.
    """

    server_lr: Annotated[float, Ge(0), Degenerate(0)] = 0.01  # eta_s, learning rate of the head (SGD)
    server_epochs: Annotated[int, Ge(0), Degenerate(0)] = 1  # E_s, epochs over the reported means per round
    server_batch: Annotated[int, Ge(1)] = 1  # reported means per step
    server_momentum: Annotated[float, Interval(ge=0, lt=1)] = 0.9  # momentum of the head's SGD
    server_weight_decay: Annotated[float, Ge(0)] = 0.001  # weight decay of the head
    server_clip_norm: Annotated[float, Gt(0)] | None = 50.0  # maximum gradient norm of the head
    mask_missing: bool = False  # server softmax over the classes reported in the round only
    min_class_count: int = 1  # do not send classes with fewer samples
    untrained_head: bool = False  # reproduce a fault of the released code: the head is never trained
    allow_degenerate: bool = False  # accept a learning rate of 0 or 0 epochs, which train no head

    verdict = "A common head at few bytes; no gain over local training shown."
    needs = Needs(same_head=True, same_features=True)
    sends = Sends(
        up="mean feature per class, with counts",
        down="weights of the head",
        kinds=("class-means", "counts"),
    )

    def init(self, server: Server) -> None:
        server.state["head"] = weights_of(server.build(server.roster[0].spec).head)

    def round(self, server: Server, cohort: Cohort) -> None:
        replies = cohort.call(self.train, shared={"head": server.state["head"]})
        if not self.untrained_head:
            self.train_head(server, [reply.table("means") for reply in replies.values()])

    @step(down={"head": WeightsField("head")}, up={"means": TableField("features", counts=True, by_sample=True)})
    def train(self, client: Client, msg: Payload) -> Reply:
        client.load(msg.weights("head"), into=client.model.head)  # h_k <- h
        client.fit()  # cross-entropy, through extractor and head
        width = client.profile.features
        return {"means": client.class_means(client.model.features, width, min_count=self.min_class_count)}

    def train_head(self, server: Server, tables: Sequence[ClassTable]) -> None:
        """Update h <- h - eta_s grad CE(h(v), c) on batches of reported pairs (v, c)."""
        head = server.build(server.roster[0].spec).head
        copy_into(head, server.memory.weights("head"))
        reported = torch.zeros(server.classes, dtype=torch.bool, device=server.device)
        for table in tables:
            reported[table.classes] = True

        def loss(v: Tensor, c: Tensor) -> Tensor:
            z = head(v)
            return F.cross_entropy(z.masked_fill(~reported, -torch.inf) if self.mask_missing else z, c)

        settings = TrainSettings(
            epochs=self.server_epochs,
            batch_size=self.server_batch,
            lr=self.server_lr,
            momentum=self.server_momentum,
            weight_decay=self.server_weight_decay,
            clip_norm=self.server_clip_norm,
        )
        fit_rows([head], loss, tables, settings, server.stream("head"))
        server.state["head"] = weights_of(head)

    def publish(self, server: Server) -> Outgoing:
        return Outgoing({"head": server.state["head"]})

    def adopt(self, client: Client, msg: Payload) -> None:
        client.state["server head"] = msg["head"]

    def also_predict(self) -> Mapping[str, Callable[[Client, Tensor], Tensor]]:
        return {"server head": self.predict_with_server_head}

    def predict_with_server_head(self, client: Client, x: Tensor) -> Tensor:
        head = client.memory.weights("server head")
        logits: Tensor = functional_call(client.model.head, head, (client.model.features(x),))
        return logits
