"""FedL2G: learning to guide local training in heterogeneous federated learning.

Zhang, Liu, Hua, Cao, Yang; arXiv 2410.06490, 2024, Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

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
    register,
    rng,
    step,
)
from polyfed.core.needs import check
from polyfed.core.options import Degenerate
from polyfed.core.profile import Profile
from polyfed.core.schema import FromMethod
from polyfed.core.step import Step
from polyfed.methods.fedl2g.guidance_gradient import Batch, guidance_gradient
from polyfed.training import Samples
from polyfed.training.losses import masked_mean
from polyfed.training.samples import as_floats

SERVER_LR = {"logit": 0.1, "feature": 100.0}  # the paper's, tuned on CIFAR-100
LONGEST_WARMUP = 50  # rounds; the released code's


@register("fedl2g")
@dataclass(frozen=True)
class FedL2G(Method):
    """FedL2G: clients follow one guiding vector per class, learned so that following lowers their loss on a quiz.

    The gradient for the vectors is the exact one; the paper's equations 8 and 9 lose its factors 1 / (M B). A row is
    sent if and only if its class is in the study batch, so that much less goes up than the paper counts. Study
    batches are drawn anew in every epoch and the last, smaller one is kept (R7). The paper gives no length of the
    warm-up; here it is a tenth of the rounds, and at most the 50 of the released code.
    """

    space: Literal["logit", "feature"] = "logit"  # what is guided; features must then have one width
    guidance: Literal["learned", "frozen-random", "zero"] = "learned"  # the last two are controls: never learned
    weight: Annotated[float, Ge(0), Degenerate(0)] = 1.0  # of the pull towards the guiding vectors
    server_lr: Annotated[float, Ge(0), Degenerate(0)] | None = None  # eta_s; default: 0.1 (logits), 100 (features)
    warmup: Annotated[int, Ge(0)] | None = None  # T', rounds that train only vectors; default: rounds / 10, up to 50
    quiz: Annotated[int, Ge(1)] = 10  # samples that a client holds out of its training data, for good
    study_batches: Annotated[int, Ge(1)] = 1  # pseudo-steps per round, over which the gradient is averaged
    gradient: Literal["jvp", "double_backward", "finite_diff"] = "jvp"  # how it is computed: equal, but for rounding
    quiz_norms: Literal["auto", "eval"] = "auto"  # BatchNorm on the quiz: by the batch, or by running statistics
    average: Literal["owners", "participants"] = "owners"  # divide a row by the clients that sent it, or by all
    scale_invariant: bool = False  # multiply the gradient by M, so that one server_lr fits both spaces
    mask_unlearned: bool = False  # no pull towards a vector that has never been updated
    clip_norm: Annotated[float, Gt(0)] | None = 100.0  # of a training step's gradient, unless train.clip_norm is set
    server_clip_norm: Annotated[float, Gt(0)] | None = 100.0  # of the gradient for all vectors together
    allow_degenerate: bool = False  # accept weight 0, which is local training on the study set, and server_lr 0

    needs = Needs()
    sends = Sends(
        up="gradient of the quiz loss for the vectors of the classes in the study batches", down="guiding vectors"
    )

    def width(self, profile: Profile) -> int:
        """Return M, the number of entries of a guiding vector."""
        return profile.classes if self.space == "logit" else profile.features

    def init(self, server: Server) -> None:
        if self.space == "feature":
            check("FedL2G with space: feature", Needs(same_features=True), server.roster, [("space: logit", Needs())])
        shape = (server.classes, self.width(server.roster[0]))
        drawn = torch.randn(shape, generator=server.stream("guiding vectors"))  # V ~ N(0, 1)
        server.state["start"] = server.state["vectors"] = torch.zeros(shape) if self.guidance == "zero" else drawn
        server.state["updates"] = torch.zeros(server.classes)  # how often a vector was updated

    def round(self, server: Server, cohort: Cohort) -> None:
        vectors, updates = server.memory.tensor("vectors"), server.memory.tensor("updates")
        longest = min(LONGEST_WARMUP, server.rounds // 10) if self.warmup is None else self.warmup
        steps: list[Step] = (
            [self.train] if server.round > longest else []
        )  # while warming up, models stay as they are
        steps += [self.quiz_feedback] if self.guidance == "learned" else []
        if steps:
            down = {"vectors": vectors, "learned": updates} if self.mask_unlearned else {"vectors": vectors}
            got = cohort.call(*steps, shared=down)
        if self.guidance == "learned":
            pi, senders = self.mean_gradient(vectors, [reply.table("gradient") for reply in got.values()])
            rate = SERVER_LR[self.space] if self.server_lr is None else self.server_lr
            server.state["vectors"] = vectors = vectors - rate * pi  # V^t = V^(t-1) - eta_s pi^t
            server.state["updates"] = updates + (senders > 0)
            silent = [name for name, reply in got.items() if not len(reply.table("gradient"))]
            moved = float((vectors - server.memory.tensor("start")).norm() / server.memory.tensor("start").norm())
            if server.round == server.rounds or server.round % max(1, server.rounds // 12) == 0:  # for a figure
                server.save_artifact("guiding_vectors", vectors=vectors, classes=torch.arange(server.classes))
            server.record("guidance", gradient=float(pi.norm()), moved=moved, silent=silent, rows=senders.tolist())

    def mean_gradient(self, vectors: Tensor, tables: list[ClassTable]) -> tuple[Tensor, Tensor]:
        """pi^t and, per class, how many clients sent a row: a class that nobody sent has 0 and stays."""
        total = torch.zeros_like(vectors, dtype=torch.float64)
        senders = torch.zeros(len(vectors), dtype=torch.float64)
        for table in tables:
            total[table.classes] += table.values
            senders[table.classes] += 1
        among = senders if self.average == "owners" else torch.tensor(float(len(tables)))  # line 13, or equation 6
        pi = (total / among.clamp(min=1).reshape(-1, 1)).float()
        if self.server_clip_norm is not None:
            pi *= (self.server_clip_norm / pi.norm().clamp(min=1e-12)).clamp(max=1)
        return pi, senders

    @step(
        down={
            "vectors": TensorField(("classes", FromMethod("width"))),
            "learned": TensorField(("classes",), optional=True),
        }
    )
    def train(self, client: Client, msg: Payload) -> None:
        vectors = msg.tensor("vectors")
        study, _ = self.share(client)
        clip = self.clip_norm if client.settings.clip_norm is None else client.settings.clip_norm
        known = msg.tensor("learned") > 0 if self.mask_unlearned else None

        def loss(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:  # L_ce + L_g, equation 4
            guided, logits = self.outputs(client, x)
            if known is None:
                pull = F.mse_loss(guided, vectors[y])
            else:
                pull = masked_mean((guided - vectors[y]).square().mean(1), known[y])
            return F.cross_entropy(logits, y), self.weight * pull

        if len(study):
            client.fit(loss, samples=study, clip_norm=clip)
        else:
            client.fit(clip_norm=clip)  # its only sample would be the quiz

    @step(
        down={
            "vectors": TensorField(("classes", FromMethod("width"))),
            "learned": TensorField(("classes",), optional=True),
        },
        up={"gradient": TableField(FromMethod("width"))},
    )
    def quiz_feedback(self, client: Client, msg: Payload) -> Reply:
        vectors = msg.tensor("vectors")
        study, quiz = self.share(client)
        sent = ClassTable.empty(vectors.shape[1]).without_counts()
        if not len(study) or not len(quiz):
            return {"gradient": sent}
        pi, seen = torch.zeros_like(vectors), set[int]()
        for x, y in self.study_batches_of(client, study):
            seen.update(y.tolist())
            pi += guidance_gradient(
                client.model,
                lambda x: self.outputs(client, x),
                vectors,
                (x, y),
                (as_floats(quiz.images), quiz.labels),
                lr=client.settings.lr,
                weight=self.weight,
                way=self.gradient,
                quiz_norms=self.quiz_norms,
            )
        pi *= (vectors.shape[1] if self.scale_invariant else 1) / self.study_batches
        if bool(torch.isfinite(pi).all()):  # a model that has diverged has nothing to say
            sent = ClassTable.of({c: pi[c] for c in seen}, vectors.shape[1])
        return {"gradient": sent}

    def outputs(self, client: Client, x: Tensor) -> tuple[Tensor, Tensor]:
        """What is guided, and the logits."""
        features = client.model.features(x)
        logits: Tensor = client.model.head(features)
        return (logits if self.space == "logit" else features), logits

    def share(self, client: Client) -> tuple[Samples, Samples]:
        """Study and quiz set: drawn from the seed and the client's name alone, so the same in every round."""
        n, batch = len(client.train), client.settings.batch_size
        held = self.quiz if n >= self.quiz + batch else max(1, n // 10)
        order = torch.randperm(n, generator=rng.generator(client.seed, "quiz", client.name))
        return client.train.subset(order[held:].sort().values), client.train.subset(order[:held].sort().values)

    def study_batches_of(self, client: Client, study: Samples) -> list[Batch]:
        """Random batches of the study set, each drawn without regard to the others."""
        stream, size = client.stream("study"), client.settings.batch_size
        drawn = [study.subset(torch.randperm(len(study), generator=stream)[:size]) for _ in range(self.study_batches)]
        return [(as_floats(samples.images), samples.labels) for samples in drawn]
