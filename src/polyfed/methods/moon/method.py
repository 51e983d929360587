"""MOON: model-contrastive federated learning.

Li, He, Song; CVPR 2021, Algorithm 1.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt
from torch import Tensor, nn

from polyfed.core import Client, Cohort, Payload, Reply, Sends, Server, register, step
from polyfed.core.client import copy_into, weights_of
from polyfed.core.one_model import UpdateAggregator, apply_update, weights_for_clients
from polyfed.core.options import Degenerate
from polyfed.core.schema import ScalarField, TreeField, WeightsField
from polyfed.methods.fedavg import FedAvg
from polyfed.methods.moon.projection_head import ProjectionHeads
from polyfed.models.slicing import OwnerMean
from polyfed.training.noise import noisy


@register("moon")
@dataclass(frozen=True)
class Moon(FedAvg):
    """MOON: FedAvg whose clients keep their features near the global model's and away from their last model's.

    Features are compared through a projection, which is trained and averaged with the model and travels beside it;
    the classifier stays on the features, where the released code puts it behind the projection. The two models that
    are compared with are in evaluation mode and see no gradient; a popular library shares one in training mode among
    all clients. A client's first round has no last model, and no contrastive term.
    """

    mu: Annotated[float, Ge(0), Degenerate(0)] = 1.0  # weight of the contrastive term
    temperature: Annotated[float, Gt(0)] = 0.5  # of the similarities
    projection: bool = True  # compare features through a projection, as in the paper, or as they are
    projection_width: Annotated[int, Ge(1)] = 256  # outputs of both layers of the projection
    allow_degenerate: bool = False  # accept mu 0, which is FedAvg

    sends = Sends(
        up="all weights of the model and of the projection, and the number of samples",
        down="all weights of the model and of the projection",
    )

    def init(self, server: Server) -> None:
        super().init(server)
        if self.projection and self.mu:
            server.state["projection"] = ProjectionHeads(server, "projection", self.projector).initial()

    def round(self, server: Server, cohort: Cohort) -> None:
        if "projection" not in server.state:
            super().round(server, cohort)
            return
        model, projection = server.memory.weights("model"), server.memory.weights("projection")
        beside = ProjectionHeads(server, "projection", self.projector)
        changes, mean, also = (
            UpdateAggregator(server, model),
            OwnerMean(projection),
            beside.parts(cohort.ids, projection),
        )
        out = weights_for_clients(server, cohort.ids, model=model)
        for k, got in cohort.stream(self.train, out=out, shared=also.shared, each=also.each):
            changes.add(k, got.weights("model"), self.weight(got), times=self.server_lr)
            beside.add(mean, k, got.weights("projection"), self.weight(got))
        server.state["projection"] = mean.result(projection)
        server.state["model"] = apply_update(server, model, changes.mean())

    @step(
        down={"model": WeightsField(), "projection": TreeField(optional=True)},
        up={
            "model": WeightsField(),
            "samples": ScalarField(least=0),
            "projection": TreeField(like="projection", optional=True),
        },
    )
    def train(self, client: Client, msg: Payload) -> Reply:
        project = self.loaded_projector(client, msg)
        last = self.last(client)  # before the model is overwritten
        self.receive(client, msg)
        if last is None or not self.mu:
            client.fit(modules=[client.model, project])
        else:
            self.contrast(client, project, last)
        client.state["projection"] = weights_of(project)  # empty without one: still says that there is a last model
        reply = self.upload(client, msg)
        if "projection" in msg:
            reply["projection"] = self.sent(client, project, msg)
        return reply

    def contrast(self, client: Client, project: nn.Module, last: nn.Module) -> None:
        """CE + mu l_con(r(x), r_global(x), r_prev(x))."""
        model, received = client.model, _frozen(nn.Sequential(client.model.backbone, project))

        def loss(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            f = model.features(x)
            with torch.no_grad():  # R4
                toward, away = received(x), last(x)
            return F.cross_entropy(model.head(f), y), self.mu * contrastive(
                project(f), toward, away, self.temperature
            )

        client.fit(loss, modules=[model, project])

    def last(self, client: Client) -> nn.Module | None:
        """r_prev: what the client trained last, which still is its model; None in its first round."""
        if "projection" not in client.state:
            return None
        before = client.memory.weights("projection")
        project = self.projector(client.profile.features) if before else nn.Identity()
        copy_into(project, before)
        return _frozen(nn.Sequential(client.model.backbone, project))

    def loaded_projector(self, client: Client, msg: Payload) -> nn.Module:
        """The projection as it was received; without one, features are compared as they are."""
        if "projection" not in msg:
            return nn.Identity()
        project = self.projector(client.profile.features)
        copy_into(project, msg.weights("projection"))
        return project

    def projector(self, features: int) -> nn.Module:
        width = self.projection_width
        return nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, width))

    def sent(self, client: Client, project: nn.Module, msg: Payload) -> dict[str, Tensor]:
        trained = weights_of(project)
        if not self.upload_noise:
            return trained
        stream = client.stream("upload noise of the projection")
        return noisy(trained, msg.weights("projection"), trained, self.upload_noise, stream)


def contrastive(r: Tensor, toward: Tensor, away: Tensor, temperature: float) -> Tensor:
    """-log(exp(s_g/T) / (exp(s_g/T) + exp(s_prev/T))) as a cross-entropy, which does not overflow."""
    similar = torch.stack([F.cosine_similarity(r, toward), F.cosine_similarity(r, away)], 1)
    return F.cross_entropy(similar / temperature, torch.zeros(len(r), dtype=torch.int64))


def _frozen(module: nn.Module) -> nn.Module:
    """A copy that neither learns nor counts."""
    return copy.deepcopy(module).eval().requires_grad_(False)
