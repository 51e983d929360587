"""MOON: model-contrastive federated learning.

Li, He, Song; CVPR 2021, Algorithm 1.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt
from torch import Tensor, nn

from polyfed.core import Client, Cohort, Payload, Reply, Sends, Server, register, step
from polyfed.core.client import copy_into, weights_of
from polyfed.core.client_profile import Profile
from polyfed.core.options import Degenerate
from polyfed.core.robust_mean import owner_mean
from polyfed.core.schema import ScalarField, TreeField, WeightsField
from polyfed.core.shared_model import UpdateAggregator, apply_update, weights_for_clients
from polyfed.core.training_work import TrainingWork
from polyfed.methods.fedavg import FedAvg
from polyfed.methods.moon.projection_head import ProjectionHeads
from polyfed.training import TrainSettings
from polyfed.training.weight_noise import noisy


@register("moon")
@dataclass(frozen=True)
class Moon(FedAvg):
    """MOON: FedAvg with a contrastive loss that keeps features near the global model and away from the previous one.

    Features are compared through a projection head, which is trained, sent and averaged like the model. The
    classifier uses the features themselves; the released code puts it after the projection. The global and the
    previous model are in evaluation mode and get no gradient; a popular library shares one such model in training
    mode between all clients. In its first round a client has no previous model, and no contrastive loss. Clients are
    measured with the server's new model.
    """

    mu: Annotated[float, Ge(0), Degenerate(0)] = 1.0  # weight of the contrastive loss
    temperature: Annotated[float, Gt(0)] = 0.5  # temperature of the similarities
    projection: bool = True  # compare projected features, as in the paper, or the features themselves
    projection_width: Annotated[int, Ge(1)] = 256  # width of both layers of the projection head
    allow_degenerate: bool = False  # accept mu 0, which is FedAvg

    verdict = "FedAvg with a contrastive loss on features; differences from FedAvg are small here."
    sends = Sends(
        up="all weights of the model and of the projection, and the number of samples",
        down="all weights of the model and of the projection",
        kinds=("weights", "counts"),
    )
    averaged = ("model", "projection")

    def training_work(
        self, client: Profile, roster: Sequence[Profile], per_round: int, settings: TrainSettings
    ) -> TrainingWork:
        """Count training, and forward passes of the global and the previous model, each a third of the cost."""
        own = super().training_work(client, roster, per_round, settings)
        return TrainingWork(own.per_round * (5 / 3 if self.mu else 1))

    def init(self, server: Server) -> None:
        super().init(server)
        if self.projection and self.mu:
            server.state["projection"] = ProjectionHeads(server, "projection", self.projector).initial()

    def round(self, server: Server, cohort: Cohort) -> None:
        if "projection" not in server.state:
            super().round(server, cohort)
            return
        model, projection = server.memory.weights("model"), server.memory.weights("projection")
        heads = ProjectionHeads(server, "projection", self.projector)
        updates, mean = UpdateAggregator(server, model), owner_mean(server.aggregation, projection)
        out, sent = weights_for_clients(server, cohort.ids, model=model), heads.for_clients(cohort.ids, projection)
        for k, reply in cohort.stream(self.train, out=out, shared=sent.shared, each=sent.each):
            updates.add(k, reply.weights("model"), self.weight(reply), times=self.server_lr)
            heads.add(mean, k, reply.weights("projection"), self.weight(reply))
        server.state["projection"] = mean.result(projection)
        server.state["model"] = apply_update(server, model, updates.mean())

    @step(
        down={"model": WeightsField(), "projection": TreeField(optional=True)},
        up={
            "model": WeightsField(),
            "samples": ScalarField(least=0, most="samples"),
            "projection": TreeField(like="projection", optional=True),
        },
    )
    def train(self, client: Client, msg: Payload) -> Reply:
        project = self.loaded_projector(client, msg)
        previous = self.previous(client)  # before the model is overwritten
        self.receive(client, msg)
        if previous is None or not self.mu:
            client.fit(modules=[client.model, project])
        else:
            self.contrast(client, project, previous)
        client.state["projection"] = weights_of(project)  # also marks that there is a previous model
        reply = self.upload(client, msg)
        if "projection" in msg:
            reply["projection"] = self.projection_upload(client, project, msg)
        return reply

    def contrast(self, client: Client, project: nn.Module, previous: nn.Module) -> None:
        """Train with CE + mu l_con(r(x), r_global(x), r_prev(x))."""
        model, received = client.model, _frozen_copy(nn.Sequential(client.model.backbone, project))

        def loss(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            f = model.features(x)
            with torch.no_grad():
                positive, negative = received(x), previous(x)
            task = F.cross_entropy(model.head(f), y)
            return task, self.mu * contrastive_loss(project(f), positive, negative, self.temperature)

        client.fit(loss, modules=[model, project])

    def previous(self, client: Client) -> nn.Module | None:
        """Return r_prev: the client's model of its previous round with its projection; None in its first round."""
        if "projection" not in client.state:
            return None
        weights = client.memory.weights("projection")
        project = self.projector(client.profile.features).to(client.device) if weights else nn.Identity()
        copy_into(project, weights)
        return _frozen_copy(nn.Sequential(client.model.backbone, project))

    def loaded_projector(self, client: Client, msg: Payload) -> nn.Module:
        """Return the received projection head, or the identity if there is none."""
        if "projection" not in msg:
            return nn.Identity()
        project = self.projector(client.profile.features).to(client.device)
        copy_into(project, msg.weights("projection"))
        return project

    def projector(self, features: int) -> nn.Module:
        width = self.projection_width
        return nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, width))

    def projection_upload(self, client: Client, project: nn.Module, msg: Payload) -> dict[str, Tensor]:
        trained = weights_of(project)
        if not self.upload_noise:
            return trained
        stream = client.stream("upload noise of the projection")
        return noisy(trained, msg.weights("projection"), trained, self.upload_noise, stream)


def contrastive_loss(r: Tensor, positive: Tensor, negative: Tensor, temperature: float) -> Tensor:
    """Return -log(exp(s_g/T) / (exp(s_g/T) + exp(s_prev/T))) as a cross-entropy, which does not overflow."""
    similarities = torch.stack([F.cosine_similarity(r, positive), F.cosine_similarity(r, negative)], 1)
    return F.cross_entropy(similarities / temperature, torch.zeros(len(r), dtype=torch.int64, device=r.device))


def _frozen_copy(module: nn.Module) -> nn.Module:
    """Return a copy in evaluation mode, without gradients."""
    return copy.deepcopy(module).eval().requires_grad_(False)
