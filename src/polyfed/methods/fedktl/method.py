"""FedKTL: an upload-efficient scheme for transferring knowledge from a server-side pre-trained generator.

Zhang, Liu, Hua, Cao; CVPR 2024, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor, nn

from polyfed.core import (
    ClassTable,
    Client,
    Cohort,
    Method,
    Needs,
    Payload,
    Reply,
    ScalarField,
    Sends,
    Server,
    TableField,
    TensorField,
    TreeField,
    register,
    rng,
    step,
)
from polyfed.core.client import copy_into, weights_of
from polyfed.core.options import Degenerate
from polyfed.core.schema import FromMethod
from polyfed.errors import InputError
from polyfed.methods.fedktl.alignment import feature_transformer, train_transformer
from polyfed.methods.fedktl.image_latent_pairs import IMAGE_SIZE, Pairs, make_pairs
from polyfed.methods.fedktl.simplex import arcface, simplex_etf
from polyfed.models.generators import load_generator
from polyfed.training import TrainSettings


@register("fedktl")
@dataclass(frozen=True)
class FedKTL(Method):
    """FedKTL: the server turns class means into images of a pretrained generator, and clients learn from them.

    It needs a generator of your own (`source`, `checkpoint`), which every result names; `fedktl-lite` runs without.
    Differences from the released code: a client's own head gives the C numbers that are compared with the simplex,
    generated images do not enter BatchNorm statistics, and a class has no image before a client has reported it.
    Clients are measured with the models that they have trained, while the server trains.
    """

    source: str = ""  # Python file whose build() returns the generator: latents to images in [0, 1]
    checkpoint: str = ""  # weights of the generator, a safetensors file
    sha256: str = ""  # checksum of the checkpoint, for the record
    pretraining: str = ""  # what the generator was trained on, in words, for the record
    latent_width: int = 512  # H, size of a latent of the generator
    guidance: Annotated[float, Ge(0), Degenerate(0)] = 50.0  # mu, weight of the regression from images to latents
    alignment: float = 1.0  # lambda, weight of the class centroids at the server; 0.1 or 0.01 for other generators
    margin: float = 0.5  # m, added to the angle to the correct class
    scale: float = 64.0  # s, factor of the cosines
    server_lr: float = 0.01  # learning rate of the server (Adam)
    server_epochs: int = 100  # E_s, passes of the server over the uploads
    server_batch: int = 100  # batch size of the server
    clip_norm: float = 100.0  # gradient clipping, at clients and at the server
    persist_projection: bool = False  # clients keep their trained projection instead of the server's copy
    min_class_count: int = 1  # do not send classes with fewer samples
    allow_degenerate: bool = False  # accept guidance 0, which is local training against the simplex

    verdict = "Needs a pretrained generator that you bring; not measured here."
    needs = Needs(same_features=True, same_classes=True, images=True)
    sends = Sends(
        up="mean direction per class on a sphere, with counts, and the size of images",
        down="a generated image and its latent per class, and once the simplex and a projection",
        kinds=("class-means", "counts", "image-size"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in ("source", "checkpoint", "sha256", "pretraining"):
            if not getattr(self, field):
                raise InputError(
                    f"method.{field} is empty: fedktl needs a pretrained image generator (source, checkpoint, its "
                    "sha256 and what it was pretrained on); fedktl-lite runs with a stand-in for it"
                )

    def init(self, server: Server) -> None:
        if server.classes < 2:
            raise InputError(f"FedKTL needs at least 2 classes, but the data has {server.classes}")
        self.load_generator(server)  # raises an error about a wrong generator before the first round
        with rng.seeded(server.seed, "projection"):
            projection = nn.Linear(server.features, self.latent_width)
            transformer = feature_transformer(server.classes, self.latent_width)
        server.state = {
            "simplex": simplex_etf(server.classes, server.stream("simplex")),  # V
            "projection": weights_of(projection),
            "transformer": weights_of(transformer),  # F
            "centroids": ClassTable.empty(self.latent_width).without_counts(),
            "introduced": {},  # clients that have received simplex and projection
        }

    def round(self, server: Server, cohort: Cohort) -> None:
        if server.round == 1:
            server.record("generator", **self.generator_record())
        generator, known = self.load_generator(server), server.state["introduced"]
        introduced = dict(known) if isinstance(known, Mapping) else {}
        once = {name: server.state[name] for name in ("simplex", "projection")}
        each = {name: once for name in cohort.ids if name not in introduced}
        replies = cohort.call(self.train, shared=make_pairs(server, generator), each=each)
        cohort.measure("personal", "global")  # clients are evaluated while the server trains
        server.state["introduced"] = introduced | dict.fromkeys(replies, True)
        for reply in replies.values():  # the image size of the first client stays
            server.state = {side: reply[side] for side in IMAGE_SIZE} | server.state
        self.update_centroids(server, generator, [reply.table("directions") for reply in replies.values()])

    @step(
        down={
            "latents": TableField(FromMethod("latent_width")),
            "images": TreeField(optional=True),
            "simplex": TensorField(("classes", "classes"), optional=True),
            "projection": TreeField(optional=True),
        },
        up={
            "directions": TableField("classes", counts=True, by_sample=True),
            **{side: ScalarField() for side in IMAGE_SIZE},
        },
    )
    def train(self, client: Client, msg: Payload) -> Reply:
        """Train on L_A + mu MSE(proj(f(image_c)), w_c), and return the mean direction of each class."""
        client.state |= {name: value for name, value in msg.items() if name in ("simplex", "projection")}
        simplex = client.memory.tensor("simplex")
        projection = nn.Linear(client.profile.features, self.latent_width).to(client.device)
        client.load(client.memory.weights("projection"), into=projection)
        pairs = Pairs.received(client, msg)

        def loss(x: Tensor, y: Tensor, *pair: Tensor) -> tuple[Tensor, ...]:
            cosines = self.direction(client, x) @ simplex.T  # <q, V_j>
            task = F.cross_entropy(arcface(cosines, y, margin=self.margin, scale=self.scale), y)  # L_A
            if pairs is None:
                return (task,)
            images, latents = pairs.images[pair[0]], pairs.latents[pair[0]]
            client.model.eval()
            f = client.model.features(images)
            client.model.train()
            return task, self.guidance * F.mse_loss(projection(f), latents)

        draw = None if pairs is None else pairs.draw
        client.fit(loss, modules=[client.model, projection], clip_norm=self.clip_norm, draw=draw)
        if self.persist_projection:
            client.state["projection"] = weights_of(projection)
        means = client.class_means(
            lambda x: self.direction(client, x), client.classes, min_count=self.min_class_count
        )
        directions = ClassTable(means.classes, F.normalize(means.values), means.counts)
        return {"directions": directions, **dict(zip(IMAGE_SIZE, client.train.inputs.shape[1:], strict=True))}

    def update_centroids(self, server: Server, generator: nn.Module, uploads: Sequence[ClassTable]) -> None:
        """Train F on the uploads, and update the centroids of their classes. Other classes keep their centroid."""
        with rng.seeded(server.seed, "transformer"):
            transformer = feature_transformer(server.classes, self.latent_width).to(server.device)
        copy_into(transformer, server.memory.weights("transformer"))
        settings = TrainSettings(
            epochs=self.server_epochs,
            batch_size=self.server_batch,
            optimizer="adam",
            lr=self.server_lr,
            clip_norm=self.clip_norm,
        )
        centroids = train_transformer(
            transformer,
            generator,
            uploads,
            settings,
            server.stream("align"),
            classes=server.classes,
            latent_width=self.latent_width,
            alignment=self.alignment,
        )
        server.state["transformer"] = weights_of(transformer)
        server.state["centroids"] = server.memory.table("centroids").updated(centroids)

    def load_generator(self, server: Server) -> nn.Module:
        with rng.seeded(server.seed, "generator"):
            generator = load_generator(
                self.source, self.checkpoint, latent_width=self.latent_width, sha256=self.sha256
            )
        return generator.to(server.device)

    def generator_record(self) -> dict[str, str | bool]:
        """Return what the events of a run say about the generator."""
        return {"faithful": True, "sha256": self.sha256, "pretraining": self.pretraining}

    def direction(self, client: Client, x: Tensor) -> Tensor:
        """Return q, the output of the head on the unit sphere."""
        return F.normalize(client.model(x))

    def predict(self, client: Client, x: Tensor) -> Tensor:
        q = self.direction(client, x)
        return q @ client.memory.tensor("simplex").T if "simplex" in client.state else q

    def predicts_probabilities(self, way: str = "") -> bool:
        return False  # cosines between directions
