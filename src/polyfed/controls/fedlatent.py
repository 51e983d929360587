"""Variants of FedLatent for its ablation: each switches one part off.

polyfed run fedlatent-digits 'imports=[polyfed.controls.fedlatent]' method=fedlatent-means-only
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polyfed.core import Client, Payload, Reply, TableField, register, step
from polyfed.core.class_tables import ClassTable
from polyfed.methods.fedlatent import FedLatent
from polyfed.methods.fedlatent.method import DECODER, MEANS


@register("fedlatent-means-only")
@dataclass(frozen=True)
class MeansOnly(FedLatent):
    """FedLatent without variances: latents are class means plus the noise of training."""

    def sample(self, msg: Payload, count: int, stream: torch.Generator) -> tuple[Tensor, Tensor]:
        table = msg.table("statistics")
        values = table.values.clone()
        values[:, table.width // (2 + self.rank) :] = 0
        return super().sample(Payload({"statistics": ClassTable(table.classes, values)}), count, stream)


@register("fedlatent-averaged-once")
@dataclass(frozen=True)
class AveragedOnce(FedLatent):
    """FedLatent with a decoder per client: the average of the last round is used in fine-tuning only."""

    @step(down={"means": TableField("features"), "decoder": DECODER}, up={"means": MEANS, "decoder": DECODER})
    def train(self, client: Client, msg: Payload) -> Reply:
        own = client.state.get("decoder", msg["decoder"])
        reply = super().train(client, Payload({"means": msg["means"], "decoder": own}))
        client.state["decoder"] = reply["decoder"]
        return reply
