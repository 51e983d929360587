"""DFFKE: aggregation-free heterogeneous federated learning with data-free knowledge exchange.

Anonymous authors (under review when read), Algorithm 1, with the local training of a round at its end.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, Gt, Interval
from torch import Tensor, nn

from polyfed.core import Client, Cohort, Method, Needs, Payload, Reply, Sends, Server, register, step
from polyfed.core.client import weights_of
from polyfed.core.schema import ScalarField, TensorField
from polyfed.methods.dffke import public_images, records
from polyfed.methods.dffke.decoder_training import AddedLoss, Codes, fit_decoder, new_decoder, steps_per_client
from polyfed.methods.dffke.docking import Snapshots, embed_samples, snapshot, unify
from polyfed.methods.dffke.exchange import exchange_batches, kl_divergence, learn, number_of_turns, teacher_outputs
from polyfed.methods.dffke.local_training import train_to_accuracy
from polyfed.methods.dffke.messages import EMBED_REPLY, round_key, tree_fields
from polyfed.methods.dffke.pixel_statistics import moments_once, store_moments
from polyfed.methods.dffke.public_images import images_at
from polyfed.methods.dffke.replay_rounds import ReplayPlan, empty_replay_state, forget_oldest, store_round
from polyfed.methods.dffke.synthetic_images import TransferImages
from polyfed.methods.dffke.teachers import TeacherOutputs, student_messages
from polyfed.methods.dffke.training_work import training_work


@register("dffke")
@dataclass(frozen=True)
class DFFKE(Method):
    """DFFKE: clients learn from each other's outputs on synthetic images, decoded from embeddings of private samples.

    There is no global model, but the server must be trusted: it receives all weights and one embedding per private
    sample, and participants receive the embeddings of all others. Where paper and released code differ, the paper is
    followed, except that the divergence is KL(teacher || student): equations 2 to 8 and the code have it, equation 13
    prints the reverse. What the paper does not say is as in the released code: one Adam for exchange and local
    training of a round, the stopping rule, and equal initial docking layers for equal architectures. Decoded images
    get the pixel statistics of the data, which clients upload once. Local training follows `train` of the config.

    As in the paper, global accuracy is measured after the exchange and personal accuracy after local training; the
    metric `client_mean` is personal accuracy as the paper averages it. Results: docs/results/dffke.md.
    """

    tau: Annotated[float, Interval(gt=0, le=1)] = 0.98  # training accuracy that ends local training (Table 9)
    stop: Literal["running", "evaluated"] = "running"  # running accuracy of the epoch, as released, or evaluated anew
    max_local_epochs: Annotated[int, Ge(1)] = 100  # upper limit of local epochs in a round
    width: Annotated[int, Ge(1)] = 512  # h, dimension of the common embedding space
    decoder_channels: Annotated[int, Ge(1)] = 128  # channels of the decoder's first feature map; the second has half
    pixel_statistics: bool = True  # clients upload mean and mean square of their pixels once, which scale the images
    docking_steps: Annotated[int, Ge(0)] = 100  # T_Tran, steps on each client's embeddings
    docking_target: Literal["labels", "soft"] = "labels"  # what clients upload to align embeddings: labels, or logits
    decoder_epochs: Annotated[int, Ge(0)] = 3  # T_Dec, passes over the embeddings of the largest client
    exchange_epochs: Annotated[int, Ge(0)] = 2  # T_FKE, passes over the synthetic images of the largest client
    least_steps: Annotated[int, Ge(0)] = 1000  # minimum number of steps of the decoder, and of a student, in a round
    batch: Annotated[int, Ge(1)] = 100  # batch size of decoder training and exchange
    lr: Annotated[float, Gt(0)] = 0.001  # learning rate of Adam for docking layers, decoder and exchange
    buffer: Annotated[int, Ge(0)] | None = None  # R, past rounds in the replay buffer; none: all (Table 5)
    teachers: Annotated[int, Ge(1)] | None = None  # per student and round, drawn at random; none: all other clients
    public: str | None = None  # exchange on images of this dataset instead of synthetic ones; its labels are not used
    public_samples: Annotated[int, Ge(1)] = 1000  # maximum number of public images

    verdict = "Raises global accuracy strongly when labels are skewed; needs pictures and a trusted server."
    resend_missed: ClassVar[bool] = True  # whether a client is sent the rounds that it missed
    needs = Needs(images=True)
    sends = Sends(
        up="all weights, one embedding and label (or logits) per training sample, outputs on synthetic images, and "
        "once the mean and mean square of the pixels",
        down="a decoder, all clients' embeddings in a common space, a docking layer, and all clients' outputs",
        kinds=("weights", "embeddings", "labels", "outputs", "pixel-statistics", "training-statistics"),
    )
    training_work = training_work

    def init(self, server: Server) -> None:
        server.state = {"docking": {}, "decoder": {}, "pixels": {}, "introduced": {}, **empty_replay_state()}
        if self.public is not None:
            server.state["public"] = public_images.sample(self.public, self.public_samples, server.stream("public"))

    def public_dataset(self) -> str | None:
        return self.public

    def round(self, server: Server, cohort: Cohort) -> None:
        if self.public is None:
            outputs = self.outputs_on_synthetic_images(server, cohort)  # lines 6 to 17
        else:
            outputs = public_images.collect_outputs(server, cohort, self)
        if each := student_messages(server, cohort.ids, outputs, batch=self.batch, teachers=self.teachers):
            cohort.call(self.exchange, each=each)  # lines 18 to 21
        cohort.measure("global")  # the paper's "classic" accuracy
        replies = cohort.call(self.train)  # lines 3 to 5 of the next round
        records.record_local_training(server, replies, self.tau)
        cohort.measure("personal")

    def outputs_on_synthetic_images(self, server: Server, cohort: Cohort) -> TeacherOutputs | None:
        """Return the outputs of all participants, or None if fewer than two have samples."""
        uploads = cohort.call(self.warm_up, self.embed)  # line 6
        store_moments(server, uploads)
        uploads = {name: upload for name, upload in uploads.items() if server.profile(name).samples}
        if len(uploads) < 2:
            return None
        clients = {name: snapshot(server, name, upload, self.width) for name, upload in uploads.items()}
        losses = unify(server, clients, width=self.width, iterations=self.docking_steps, lr=self.lr)  # line 9, Eq. 11
        records.record_docking(server, losses)
        codes = self.translate(server, cohort, clients)  # line 10
        if len(codes) < 2:
            return None
        decoder = new_decoder(server, self.width, self.decoder_channels)
        losses = self.train_decoder(server, decoder, clients, codes)  # line 12
        records.record_decoder(server, decoder, losses, codes, clients)
        rows = {name: len(own) for name, own in codes.items()}
        turns, entry = self.exchange_turns(rows.values()), {"decoder": weights_of(decoder), "codes": codes}
        replay = ReplayPlan.make(server, cohort.ids, codes, self.buffer, resend=self.resend_missed)
        each = replay.messages(server)
        for name in codes:
            each[name]["docking"] = weights_of(clients[name].docking)
        replies = cohort.call(self.teach, shared={**entry, "turns": turns}, each=each)  # lines 13, 16 and 17
        replay.commit(server, entry, rows, received_by=replies)
        return TeacherOutputs(replies, rows, replay.replayed, turns)

    @step()
    def warm_up(self, client: Client, msg: Payload) -> None:
        """Lines 4 and 5 of the first round."""
        if "warm" not in client.state:
            train_to_accuracy(client, self.tau, self.max_local_epochs, self.stop)
            client.state["warm"] = True

    @step(up=EMBED_REPLY)
    def embed(self, client: Client, msg: Payload) -> Reply:
        """Line 6: share theta_k and E_k = h_k(X_k). X_k is not used again before local training."""
        embeddings = embed_samples(client)
        with torch.no_grad():
            logits = client.model.head(embeddings)
        target = {"outputs": logits} if self.docking_target == "soft" else {"labels": client.train.labels.int()}
        pixels = moments_once(client) if self.pixel_statistics else {}
        return {"model": weights_of(client.model), "embeddings": embeddings, **target, **pixels}

    def translate(self, server: Server, cohort: Cohort, clients: Snapshots) -> dict[str, Tensor]:
        """Line 10: E~_k = z_k(E_k), from the embeddings as uploaded (Eq. 10)."""
        return {name: client.docking(client.embeddings) for name, client in clients.items()}

    def train_decoder(
        self, server: Server, decoder: nn.Module, clients: Snapshots, codes: Codes, added_loss: AddedLoss = None
    ) -> list[float]:
        """Line 12: train the decoder of this round and return its losses (Eq. 12)."""
        steps = steps_per_client([len(c) for c in codes.values()], self.decoder_epochs, self.batch, self.least_steps)
        return fit_decoder(server, decoder, clients, codes, steps, self.batch, self.lr, added_loss)

    @step(
        down={"turns": ScalarField(least=0), **tree_fields("decoder", "codes", "docking", "missing", "review")},
        up={
            "targets": TensorField(("rows", "classes"), optional=True, from_model=True),
            "memory": TensorField(("past", "classes"), optional=True, from_model=True),
        },
    )
    def teach(self, client: Client, msg: Payload) -> Reply:
        """Lines 16 and 17: share softmax f_k on Dec(E~_k), and on B_t, a sample of its past images."""
        if "decoder" in msg:
            store_round(client, msg, self.buffer)
            if "docking" not in msg:
                return {}  # the client's upload was lost: it learns in this round, but does not teach
            client.state["docking"] = msg["docking"]
        client.model.eval()
        return teacher_outputs(client, msg, images_at(client, self), self.batch, lambda x: client.model(x).softmax(1))

    def exchange_turns(self, rows: Collection[int]) -> int:
        """Return how often a student learns from every teacher in a round."""
        teachers = min(len(rows) - 1, self.teachers or len(rows))
        passes = self.exchange_epochs * max(math.ceil(count / self.batch) for count in rows)
        return number_of_turns(teachers, passes, self.least_steps, replays=self.buffer != 0)

    @step(down={"turns": ScalarField(least=0, optional=True), **tree_fields("targets", "memory", "review")})
    def exchange(self, client: Client, msg: Payload) -> None:
        """Lines 18 to 21: learn from the teachers' outputs, then drop the oldest round of the memory."""
        images = images_at(client, self)
        if "targets" in msg and images.has_round(round_key(client.round)):
            self.distill(client, msg, images)
        forget_oldest(client, self.buffer)

    def distill(self, client: Client, msg: Payload, images: TransferImages) -> None:
        """Lines 19 and 20: one step per batch of current images (Eq. 13) and of past ones (Eq. 14)."""
        batches = exchange_batches(client, msg, images, self.batch)
        learn(client, [client.model], batches, lambda b: kl_divergence(client.model(b.images), b.targets), self.lr)

    @step(up={"epochs": ScalarField(least=0), "accuracy": ScalarField(least=0, most=1)})
    def train(self, client: Client, msg: Payload) -> Reply:
        """Lines 4 and 5: local training (Eq. 9)."""
        epochs, accuracy = train_to_accuracy(client, self.tau, self.max_local_epochs, self.stop)
        return {"epochs": epochs, "accuracy": accuracy}

    @step(down=tree_fields("public"))
    def store_public(self, client: Client, msg: Payload) -> None:
        """Store the public images, which a client is sent once."""
        if "public" in msg:
            public_images.store(client, msg)
