"""Variants of DFFKE for ablations: what the released code does differently, and controls of single parts.

polyfed run dffke-digits 'imports=[polyfed.controls.dffke]' method=dffke-reverse-kl
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyfed.core import Client, Cohort, Payload, Reply, Server, register, step
from polyfed.core.client import copy_into, weights_of
from polyfed.core.schema import FromMethod, TensorField
from polyfed.core.step import messages_of
from polyfed.methods.dffke import DFFKE
from polyfed.methods.dffke.decoder_training import AddedLoss, Codes
from polyfed.methods.dffke.docking import Snapshots
from polyfed.methods.dffke.exchange import (
    MIN_PROBABILITY,
    DistillationBatch,
    exchange_batches,
    kl_divergence,
    learn,
    teacher_outputs,
)
from polyfed.methods.dffke.messages import Messages, samples, subtree, tree_fields
from polyfed.methods.dffke.public_images import images_at
from polyfed.methods.dffke.synthetic_images import TransferImages

EMBED, TEACH, EXCHANGE = (messages_of(DFFKE(), name) for name in ("embed", "teach", "exchange"))
WIDTH = FromMethod("width")
KL_SCALE = 0.1  # of the KL discrepancy, which has no upper bound (Table 8)


def docking_layer(client: Client, width: int) -> nn.Linear:
    """Return the docking layer that the client was last sent."""
    docking = nn.Linear(client.profile.features, width)
    copy_into(docking, client.memory.weights("docking"))
    return docking


@register("dffke-docking-noise")
@dataclass(frozen=True)
class DockingNoise(DFFKE):
    """DFFKE as released: privacy noise affects docking layers only, codes come from clean samples. Not private."""

    def translate(self, server: Server, cohort: Cohort, clients: Snapshots) -> dict[str, Tensor]:
        each: Messages = {name: {"docking": weights_of(client.docking)} for name, client in clients.items()}
        replies = cohort.call(self.embed_again, each=each)
        return {name: reply.tensor("codes") for name, reply in replies.items() if "codes" in reply}

    @step(
        down=tree_fields("docking"),
        up={"codes": TensorField((samples, WIDTH), optional=True, by_sample=True)},
    )
    def embed_again(self, client: Client, msg: Payload) -> Reply:
        """Line 10 at the client, from samples instead of uploaded embeddings."""
        if "docking" not in msg:
            return {}
        client.state["docking"] = msg["docking"]
        docking = docking_layer(client, self.width)
        with torch.no_grad():
            return {"codes": torch.cat([docking(client.model.features(x)) for x, _ in client.clean_pass()])}


@register("dffke-reverse-kl")
@dataclass(frozen=True)
class ReverseKL(DFFKE):
    """DFFKE with equations 13 and 14 as printed: KL(student || teacher)."""

    def distill(self, client: Client, msg: Payload, images: TransferImages) -> None:
        batches = exchange_batches(client, msg, images, self.batch)
        learn(client, [client.model], batches, lambda b: reverse_kl(client.model(b.images), b.targets), self.lr)


def reverse_kl(logits: Tensor, targets: Tensor) -> Tensor:
    """Return KL(student || teacher): summed over classes, mean over the batch."""
    teacher = targets.clamp(min=MIN_PROBABILITY).log()
    return F.kl_div(teacher, logits.log_softmax(1), reduction="batchmean", log_target=True)


@register("dffke-embedding-loss")
@dataclass(frozen=True)
class EmbeddingLoss(DFFKE):
    """DFFKE as released: students also learn the teacher's code of an image, and train their docking layer on it."""

    @step(up={**EMBED.up, **tree_fields("docking")})
    def embed(self, client: Client, msg: Payload) -> Reply:
        docking = {"docking": client.state["docking"]} if "docking" in client.state else {}
        return {**super().embed(client, msg), **docking}

    @step(
        down=TEACH.down,
        up={
            **TEACH.up,
            "targets_codes": TensorField(("rows", WIDTH), optional=True),
            "memory_codes": TensorField(("past", WIDTH), optional=True),
        },
    )
    def teach(self, client: Client, msg: Payload) -> Reply:
        reply = super().teach(client, msg)
        if not reply:
            return reply
        images = images_at(client, self)
        features = teacher_outputs(client, msg, images, self.batch, client.model.features)
        docking = docking_layer(client, self.width)
        with torch.no_grad():
            return {**reply, **{f"{field}_codes": docking(rows) for field, rows in features.items()}}

    @step(down={**EXCHANGE.down, **tree_fields("targets_codes", "memory_codes")})
    def exchange(self, client: Client, msg: Payload) -> None:
        super().exchange(client, msg)

    def distill(self, client: Client, msg: Payload, images: TransferImages) -> None:
        if "docking" not in client.state:  # the client was never a teacher, so it has no docking layer
            super().distill(client, msg, images)
            return
        docking = docking_layer(client, self.width)

        def loss(batch: DistillationBatch) -> Tensor:
            features = client.model.features(batch.images)
            codes = Payload(subtree(msg.get(f"{batch.field}_codes"))).tensor(batch.teacher)[batch.rows]
            return kl_divergence(client.model.head(features), batch.targets) + F.mse_loss(docking(features), codes)

        learn(client, [client.model, docking], exchange_batches(client, msg, images, self.batch), loss, self.lr)
        client.state["docking"] = weights_of(docking)


@register("dffke-discrepancy")
@dataclass(frozen=True)
class Discrepancy(DFFKE):
    """DFFKE with a discrepancy loss (Eq. 4, Table 8): the decoder is rewarded for images on which two clients differ.

    The second client is drawn at random in every step.
    """

    measure: Literal["kl", "mae", "mse"] = "kl"  # how the outputs of two clients are compared

    def train_decoder(
        self, server: Server, decoder: nn.Module, clients: Snapshots, codes: Codes, added_loss: AddedLoss = None
    ) -> list[float]:
        def negative_discrepancy(name: str, images: Tensor, features: Tensor, stream: torch.Generator) -> Tensor:
            others = [client for other, client in clients.items() if other != name]
            student = others[int(torch.randint(len(others), (), generator=stream))]
            student_logits = student.classifier(student.encoder(images))
            return -discrepancy(clients[name].classifier(features), student_logits, self.measure)

        return super().train_decoder(server, decoder, clients, codes, negative_discrepancy)


def discrepancy(teacher: Tensor, student: Tensor, measure: str) -> Tensor:
    """Return F of Eq. 4 for the logits of two clients."""
    if measure == "kl":
        divergence = F.kl_div(student.log_softmax(1), teacher.log_softmax(1), reduction="batchmean", log_target=True)
        return KL_SCALE * divergence
    distance = F.l1_loss if measure == "mae" else F.mse_loss
    return distance(student.softmax(1), teacher.softmax(1))


@register("dffke-warm-decoder")
@dataclass(frozen=True)
class WarmDecoder(DFFKE):
    """DFFKE with a decoder that continues from the weights of the last round."""

    def train_decoder(
        self, server: Server, decoder: nn.Module, clients: Snapshots, codes: Codes, added_loss: AddedLoss = None
    ) -> list[float]:
        if server.state["decoder"]:
            copy_into(decoder, server.memory.weights("decoder"))
        losses = super().train_decoder(server, decoder, clients, codes, added_loss)
        server.state["decoder"] = weights_of(decoder)
        return losses


@register("dffke-lazy-replay")
@dataclass(frozen=True)
class LazyReplay(DFFKE):
    """DFFKE without resending: a client that missed a round never gets its decoder and codes."""

    resend_missed: ClassVar[bool] = False
