"""FedKTL: an upload-efficient scheme for transferring knowledge from a server-side pre-trained generator.

Zhang, Liu, Hua, Cao; CVPR 2024, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
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
    Value,
    register,
    rng,
    step,
)
from polyfed.core.class_rows import fit_rows
from polyfed.core.class_tables import class_means
from polyfed.core.client import copy_into, weights_of
from polyfed.core.options import Degenerate
from polyfed.core.schema import FromMethod
from polyfed.errors import InputError, PayloadError
from polyfed.methods.fedktl.simplex import arcface, feature_transformer, mmd, simplex_etf
from polyfed.models.generators import draw_latents, load_generator, resized
from polyfed.training import TrainSettings
from polyfed.training.cycle import cycled

IMAGE = ("channels", "height", "width")


@register("fedktl")
@dataclass(frozen=True)
class FedKTL(Method):
    """FedKTL: the server turns class means into images of a pretrained generator, and clients learn from them.

    Needs a generator of your own (`source`, `checkpoint`) and says in the result which one it was; `fedktl-lite` runs
    without. The client's head, whatever its shape, gives the K = C numbers that are compared with the simplex; the
    paper puts one linear layer there. Generated images pass the extractor in evaluation mode, so that they do not
    enter BatchNorm's statistics, as they do in the released code. A class that nobody has reported yet has no image
    (released: an image of a random latent). The angle is kept from where its slope is infinite, and has the usual
    guard beyond the straight angle.
    """

    source: str = ""  # Python file whose build() makes the generator: latents to images in [0, 1]
    checkpoint: str = ""  # the generator's trained weights, a safetensors file
    sha256: str = ""  # checksum of the checkpoint, so that a result says what it stands on
    pretraining: str = ""  # what the generator was trained on, in words, for the record
    latent_width: int = 512  # H, numbers in a latent of the generator
    guidance: Annotated[float, Ge(0), Degenerate(0)] = 50.0  # mu, weight of the regression from images to latents
    alignment: float = 1.0  # lambda, pull to the class centroids at the server; 0.1 or 0.01 for other generators
    margin: float = 0.5  # m, added to the angle to the right class
    scale: float = 64.0  # s, of the cosines
    server_lr: float = 0.01  # of Adam at the server
    server_epochs: int = 100  # E_s, passes of the server over what was uploaded
    server_batch: int = 100  # uploaded vectors in a step of the server
    clip_norm: float = 100.0  # largest gradient, at clients and at the server
    persist_projection: bool = False  # clients go on with their trained projection, not from the server's copy
    min_class_count: int = 1  # classes with fewer samples are not sent
    allow_degenerate: bool = False  # accept guidance 0, which trains alone against the simplex

    needs = Needs(same_features=True, same_classes=True)
    sends = Sends(
        up="mean direction per class on a sphere, with counts, and the size of images",
        down="a generated image and its latent per class, and once the simplex and a projection",
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
        self.generator_of(server)  # what is wrong with it is said now, not after a round of training
        with rng.seeded(server.seed, "projection"):
            projection = nn.Linear(server.features, self.latent_width)
            transformer = feature_transformer(server.classes, self.latent_width)
        server.state = {
            "simplex": simplex_etf(server.classes, server.stream("simplex")),  # V
            "projection": weights_of(projection),
            "transformer": weights_of(transformer),  # F
            "centroids": ClassTable.empty(self.latent_width).without_counts(),
            "introduced": {},  # who has received the first two
        }

    def round(self, server: Server, cohort: Cohort) -> None:
        if server.round == 1:
            server.record("generator", **self.card())
        generator = self.generator_of(server)
        known = server.state["introduced"]
        introduced = dict(known) if isinstance(known, Mapping) else {}
        once = {name: server.state[name] for name in ("simplex", "projection")}
        each = {name: once for name in cohort.ids if name not in introduced}
        got = cohort.call(self.train, shared=self.pairs(server, generator), each=each)
        cohort.measure("personal", "global")  # clients are evaluated while the server trains
        server.state["introduced"] = introduced | dict.fromkeys(got, True)
        for reply in got.values():
            server.state = {side: reply[side] for side in IMAGE} | server.state  # what the first client said stays
        self.align(server, generator, [reply.table("directions") for reply in got.values()])

    def pairs(self, server: Server, generator: nn.Module) -> dict[str, Value]:
        """The centroid of every class that was ever reported, and its image in the clients' size."""
        latents = server.memory.table("centroids")
        if not len(latents):
            return {"latents": latents}
        channels, height, width = (int(server.memory.number(side)) for side in IMAGE)
        with torch.no_grad(), rng.seeded(server.seed, "images", server.round):
            images = generator(latents.values)
        return {"latents": latents, "images": resized(images, (channels, height, width))}

    @step(
        down={
            "latents": TableField(FromMethod("latent_width")),
            "images": TreeField(optional=True),
            "simplex": TensorField(("classes", "classes"), optional=True),
            "projection": TreeField(optional=True),
        },
        up={
            "directions": TableField("classes", counts=True, by_sample=True),
            **{side: ScalarField() for side in IMAGE},
        },
    )
    def train(self, client: Client, msg: Payload) -> Reply:
        client.state |= {name: value for name, value in msg.items() if name in ("simplex", "projection")}
        simplex = client.memory.tensor("simplex")
        projection = nn.Linear(client.profile.features, self.latent_width)
        client.load(client.memory.weights("projection"), into=projection)
        pairs = self.received(client, msg)

        def loss(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
            cosines = self.direction(client, x) @ simplex.T  # <q, V_j>
            task = F.cross_entropy(arcface(cosines, y, margin=self.margin, scale=self.scale), y)  # L_A
            if pairs is None:
                return (task,)
            images, latents = next(pairs)
            client.model.eval()
            f = client.model.features(images)
            client.model.train()
            return task, self.guidance * F.mse_loss(projection(f), latents)  # mu |proj(f(image_c)) - w_c|^2 / H

        client.fit(loss, modules=[client.model, projection], clip_norm=self.clip_norm)
        if self.persist_projection:
            client.state["projection"] = weights_of(projection)
        means = client.class_means(
            lambda x: self.direction(client, x), client.classes, min_count=self.min_class_count
        )
        directions = ClassTable(means.classes, F.normalize(means.values), means.counts)
        return {"directions": directions, **dict(zip(IMAGE, client.train.images.shape[1:], strict=True))}

    def received(self, client: Client, msg: Payload) -> Iterator[tuple[Tensor, Tensor]] | None:
        """Batches of the received pairs, again and again; None before there are any."""
        latents, own = msg.table("latents").values, client.train.images.shape[1:]
        if not len(latents):
            return None
        images = msg.tensor("images")
        if images.shape != (len(latents), *own):
            raise PayloadError(f"field 'images' has shape {tuple(images.shape)}, expected {(len(latents), *own)}")
        return cycled(images, latents, client.settings.batch_size, client.stream("pairs"))

    def align(self, server: Server, generator: nn.Module, uploads: Sequence[ClassTable]) -> None:
        """Train F so that what it makes of q is spread as latents are and gathers by class; keep its class means."""
        with rng.seeded(server.seed, "transformer"):
            transformer = feature_transformer(server.classes, self.latent_width)
        copy_into(transformer, server.memory.weights("transformer"))

        def centroids() -> ClassTable:
            transformer.eval()
            rows = ((table.values, table.classes) for table in uploads)
            return class_means(rows, transformer, server.classes, self.latent_width).without_counts()

        start = centroids().dense(server.classes)[0]
        moving = nn.Embedding(server.classes, self.latent_width, _weight=start)  # trained along with F, as released
        stream = server.stream("align")

        def loss(q: Tensor, y: Tensor) -> Tensor:
            mapped = transformer(q)
            drawn = draw_latents(generator, len(q), stream)
            return mmd(mapped, drawn) + self.alignment * F.mse_loss(mapped, moving(y))

        settings = TrainSettings(
            epochs=self.server_epochs,
            batch_size=self.server_batch,
            optimizer="adam",
            lr=self.server_lr,
            clip_norm=self.clip_norm,
        )
        fit_rows([transformer, moving], loss, uploads, settings, stream)
        server.state["transformer"] = weights_of(transformer)
        server.state["centroids"] = server.memory.table("centroids").updated(centroids())  # R6

    def generator_of(self, server: Server) -> nn.Module:
        with rng.seeded(server.seed, "generator"):
            return load_generator(self.source, self.checkpoint, latent_width=self.latent_width, sha256=self.sha256)

    def card(self) -> dict[str, str | bool]:
        """What the record of a run says about the generator."""
        return {"faithful": True, "sha256": self.sha256, "pretraining": self.pretraining}

    def direction(self, client: Client, x: Tensor) -> Tensor:
        """q: the head's numbers as a point on the unit sphere."""
        return F.normalize(client.model(x))

    def predict(self, client: Client, x: Tensor) -> Tensor:
        q = self.direction(client, x)
        return q @ client.memory.tensor("simplex").T if "simplex" in client.state else q
