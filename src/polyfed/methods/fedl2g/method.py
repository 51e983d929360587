"""FedL2G: learning to guide local training in heterogeneous federated learning.

Zhang, Liu, Hua, Cao, Yang; arXiv 2410.06490, 2024, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt
from torch import Tensor

from polyfed.core import (
    ClassTable,
    Client,
    Cohort,
    Method,
    Needs,
    Payload,
    Reply,
    Sends,
    Server,
    TableField,
    TensorField,
    Value,
    register,
    step,
)
from polyfed.core.class_tables import mean_over_clients
from polyfed.core.client_profile import Profile
from polyfed.core.options import Degenerate
from polyfed.core.schema import FromMethod
from polyfed.methods.fedl2g.figures import record_guidance
from polyfed.methods.fedl2g.guidance_gradient import guidance_gradient
from polyfed.methods.fedl2g.study_and_quiz import random_study_batches, study_quiz_split
from polyfed.training.losses import masked_mean
from polyfed.training.samples import model_inputs

SERVER_LR = {"feature": 100.0, "logit": 0.1}  # the paper tuned them on CIFAR-100
VECTORS = {
    "vectors": TensorField(("classes", FromMethod("width"))),
    "learned": TensorField(("classes",), optional=True),
}


@register("fedl2g")
@dataclass(frozen=True)
class FedL2G(Method):
    """FedL2G: clients follow one guiding vector per class, learned so that following lowers their loss on a quiz.

    The gradient for the vectors is exact; Eq. 8 and 9 of the paper omit the factor 1 / (M B). A client sends the rows
    of the classes in its study batch, which is less than the paper counts. Study batches are drawn again in every
    epoch, and the last, smaller batch is used.

    The warm-up trains no model. The released code spends its first 50 rounds on it; here 50 exchanges of vectors
    precede the training of round 1, with the participants of that round, so that every round trains. After the
    warm-up, clients train on their quiz samples as well; the paper holds them out (`train_on_quiz: false`). The
    control `guidance: frozen-random` shows what learning the vectors adds. The paper has both spaces; features are
    its better variant and the default. Clients are measured with the models that they have trained, as in the paper.
    Results: docs/results/fedl2g.md.
    """

    space: Literal["feature", "logit"] = "feature"  # guide features, which must have one width, or logits
    guidance: Literal["learned", "frozen-random", "zero"] = "learned"  # the last two are controls: vectors stay fixed
    weight: Annotated[float, Ge(0), Degenerate(0)] = 1.0  # weight of the guidance loss
    server_lr: Annotated[float, Ge(0), Degenerate(0)] | None = None  # eta_s; none: 100 for features, 0.1 for logits
    warmup: Annotated[int, Ge(0)] = 50  # T', exchanges of vectors before any model is trained
    quiz: Annotated[int, Ge(1)] = 10  # training samples of a client that are its quiz set
    train_on_quiz: bool = True  # train on the quiz samples as well; false: hold them out, as in the paper
    study_batches: Annotated[int, Ge(1)] = 1  # pseudo-training steps per round; their gradients are averaged
    gradient: Literal["jvp", "finite_diff"] = "jvp"  # Jacobian-vector product: forward mode, or with less memory
    average: Literal["owners", "participants"] = "owners"  # average a row over its senders, or over all clients
    mask_unlearned: bool = False  # do not follow a vector that has never been updated
    clip_norm: Annotated[float, Gt(0)] | None = 100.0  # gradient clipping in training, unless train.clip_norm is set
    server_clip_norm: Annotated[float, Gt(0)] | None = 100.0  # clipping of the gradient for all vectors
    allow_degenerate: bool = False  # accept weight 0, which is local training, and server_lr 0

    verdict = "No gain over local training shown; frozen random vectors do as well as learned ones."
    needs = Needs(same_features=True)
    relaxed_by: ClassVar[Mapping[str, str]] = {"same_features": "method.space: logit"}
    sends = Sends(
        up="gradient of the quiz loss for the vectors of the classes in the study batches",
        down="guiding vectors",
        kinds=("gradients",),
    )
    averaged = ("gradient",)

    def requirements(self) -> Needs:
        return self.needs if self.space == "feature" else Needs()

    def width(self, profile: Profile) -> int:
        """Return M, the number of entries of a guiding vector."""
        return profile.classes if self.space == "logit" else profile.features

    def mean_weights(self) -> Mapping[str, str] | None:
        return {"gradient": ""} if self.average == "owners" else None

    def init(self, server: Server) -> None:
        shape = (server.classes, self.width(server.roster[0]))
        normal = torch.randn(shape, generator=server.stream("guiding vectors"))  # V ~ N(0, 1)
        server.state["start"] = server.state["vectors"] = torch.zeros(shape) if self.guidance == "zero" else normal
        server.state["updates"] = torch.zeros(server.classes)  # how often each vector was updated

    def round(self, server: Server, cohort: Cohort) -> None:
        """Run lines 3 to 14 of Algorithm 1, in round 1 after the warm-up."""
        if self.guidance != "learned":
            cohort.call(self.train, shared=self.message(server))
            return
        for _ in range(self.warmup if server.round == 1 else 0):
            self.update_vectors(server, cohort.call(self.quiz_feedback, shared=self.message(server)))
        replies = cohort.call(self.train, self.quiz_feedback, shared=self.message(server))  # lines 6 to 12
        record_guidance(server, *self.update_vectors(server, replies))

    def message(self, server: Server) -> dict[str, Value]:
        """Return what all clients receive: the vectors, and which of them have been updated if this matters."""
        vectors, updates = server.memory.tensor("vectors"), server.memory.tensor("updates")
        return {"vectors": vectors, "learned": updates} if self.mask_unlearned else {"vectors": vectors}

    def update_vectors(
        self, server: Server, replies: Mapping[str, Payload]
    ) -> tuple[Tensor, Tensor, dict[str, ClassTable]]:
        """Update the vectors with the clients' gradients. Return the mean gradient, its senders and the uploads."""
        uploads = {name: reply.table("gradient") for name, reply in replies.items()}
        pi, senders = self.mean_gradient(server, list(uploads.values()))  # line 13
        eta = SERVER_LR[self.space] if self.server_lr is None else self.server_lr
        server.state["vectors"] = server.memory.tensor("vectors") - eta * pi  # line 14
        server.state["updates"] = server.memory.tensor("updates") + (senders > 0)
        return pi, senders, uploads

    def mean_gradient(self, server: Server, uploads: Sequence[ClassTable]) -> tuple[Tensor, Tensor]:
        """Return pi^t, and how many clients sent a row of each class. Rows that no client sent are 0."""
        classes, width = server.memory.tensor("vectors").shape
        senders = torch.zeros(classes, dtype=torch.float64, device=server.device)
        for table in uploads:
            senders[table.classes] += 1
        out_of = None if self.average == "owners" else len(uploads)  # line 13, or Eq. 6
        pi, _ = mean_over_clients(uploads, width=width, out_of=out_of, rule=server.aggregation).dense(classes)
        pi = pi.to(server.device)
        if self.server_clip_norm is not None:
            pi *= (self.server_clip_norm / pi.norm().clamp(min=1e-12)).clamp(max=1)
        return pi, senders

    @step(down=VECTORS)
    def train(self, client: Client, msg: Payload) -> None:
        """Train with L_ce + L_g (line 7, Eq. 4) on all samples, or on the study set only."""
        vectors = msg.tensor("vectors")
        study, _ = study_quiz_split(client, self.quiz)
        samples = client.train if self.train_on_quiz else study
        clip_norm = self.clip_norm if client.settings.clip_norm is None else client.settings.clip_norm
        learned = msg.tensor("learned") > 0 if self.mask_unlearned else None

        def loss(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            guided, logits = self.outputs(client, x)
            if learned is None:
                guidance = F.mse_loss(guided, vectors[y])
            else:
                guidance = masked_mean((guided - vectors[y]).square().mean(1), learned[y])
            return F.cross_entropy(logits, y), self.weight * guidance

        if len(study):
            client.fit(loss, samples=samples, clip_norm=clip_norm)
        else:
            client.fit(clip_norm=clip_norm)  # the only sample is the quiz: train on it without guidance

    @step(down=VECTORS, up={"gradient": TableField(FromMethod("width"))})
    def quiz_feedback(self, client: Client, msg: Payload) -> Reply:
        """Return the gradient pi_i of the quiz loss after pseudo-training (lines 10 to 12)."""
        vectors = msg.tensor("vectors")
        study, quiz = study_quiz_split(client, self.quiz)
        nothing: Reply = {"gradient": ClassTable.empty(vectors.shape[1]).without_counts()}
        if not len(study) or not len(quiz):
            return nothing
        pi, classes = torch.zeros_like(vectors), set[int]()
        for x, y in random_study_batches(client, study, self.study_batches):
            classes.update(y.tolist())
            pi += guidance_gradient(
                client.model,
                lambda x: self.outputs(client, x),
                vectors,
                (x, y),
                (model_inputs(quiz.inputs.to(client.device)), quiz.labels),
                lr=client.settings.lr,
                weight=self.weight,
                product=self.gradient,
            )
        pi *= 1 / self.study_batches
        if not bool(torch.isfinite(pi).all()):  # the model has diverged
            return nothing
        return {"gradient": ClassTable.of({c: pi[c] for c in classes}, vectors.shape[1])}

    def outputs(self, client: Client, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the guided outputs and the logits."""
        features = client.model.features(x)
        logits: Tensor = client.model.head(features)
        return (logits if self.space == "logit" else features), logits
