"""CCVR: no fear of heterogeneity, classifier calibration for federated learning with non-IID data.

Luo, Chen, Hu, Zhang, Liang, Feng; NeurIPS 2021, Algorithm 1 (classifier calibration with virtual representations).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt
from torch import Tensor, nn

from polyfed.core import ClassTable, Client, Cohort, Method, Needs, Payload, Reply, Sends, Server, register, step
from polyfed.core.averaging import WeightedMean
from polyfed.core.client import copy_into, weights_of
from polyfed.core.client_profile import Profile
from polyfed.core.method import Outgoing
from polyfed.core.options import Degenerate
from polyfed.core.schema import FromMethod, ScalarField, TableField, WeightsField
from polyfed.errors import InputError
from polyfed.methods.ccvr.class_statistics import describe_classes, pool_classes, sample_classes, statistics_width
from polyfed.training import TrainSettings, fit


@register("ccvr")
@dataclass(frozen=True)
class CCVR(Method):
    """CCVR: after the last round, heads are calibrated on features sampled from pooled class statistics.

    Clients of one architecture train with FedAvg, and the server calibrates the head of the global model: the
    published method. Clients of different architectures train locally, and each calibrates its own head on statistics
    pooled over all clients, as in later papers that compare with CCVR. Covariances use the divisor n - 1, which the
    pooling formula assumes; popular implementations use n (`biased_covariance`). Samples from singular covariances
    use their eigenvectors.

    Clients are measured with the calibrated heads after the last round, and with their models until then. With
    different architectures CCVR ends far below local training: extractors that were trained separately are not
    aligned, so the features of one model say little about classes in another. Pooling over equal models only
    (`pool: architecture`) loses less. A run that pools over different extractors records a warning. Results:
    docs/leaderboard.md.
    """

    mode: Literal["auto", "original", "hetero"] = "auto"  # auto: original if all clients have one architecture
    pool: Literal["all", "architecture"] = "all"  # hetero: pool statistics of all clients, or of equal models only
    virtual: Annotated[int, Ge(0), Degenerate(0)] = 1000  # M_c, features sampled per class
    lr: float = 0.01  # learning rate of the calibration (plain SGD)
    epochs: Annotated[int, Ge(0), Degenerate(0)] = 10  # epochs over the sampled features
    batch_size: int = 64  # sampled features per batch
    ridge: float = 1e-4  # eps, added to every variance before sampling
    diagonal: bool = False  # send only the diagonal of covariances: d numbers per class instead of d^2
    tukey: Annotated[float, Gt(0)] | None = None  # power applied to non-negative features first, e.g. 0.5; none: off
    min_class_count: int = 1  # do not send classes with fewer samples
    limit_mib: float = 256.0  # maximum size of the statistics of a client
    biased_covariance: bool = False  # reproduce a common fault: divisor n, pooled with the formula for n - 1
    allow_degenerate: bool = False  # accept 0 virtual features or epochs, which disables calibration

    verdict = (
        "Corrects heads with virtual features; needs aligned extractors, so it gains nothing when clients have "
        "different models."
    )
    needs = Needs(same_features=True, same_classes=True)
    sends = Sends(
        up="once: mean and covariance of features per class, with counts; all weights each round if models are equal",
        down="once: those of all clients, or the calibrated head; all weights each round if models are equal",
        kinds=("class-means", "class-statistics", "counts", "weights"),
    )
    averaged = ("model",)

    def width(self, profile: Profile) -> int:
        """Return the number of entries that describe one class."""
        return statistics_width(profile.features, self.diagonal)

    def init(self, server: Server) -> None:
        kinds = {profile.model: profile for profile in server.roster}
        if self.mode == "original" and len(kinds) > 1:
            models = ", ".join(f"client {p.name} has {p.architecture}" for p in list(kinds.values())[:2])
            raise InputError(f"method.mode is 'original', which needs one architecture, but {models}; use 'hetero'")
        size = 4 * server.classes * self.width(server.roster[0]) / 2**20
        if size > self.limit_mib:
            raise InputError(
                f"the class statistics of a client take {size:.0f} MiB, and method.limit_mib is {self.limit_mib:g}; "
                "set method.diagonal: true, a smaller models.feature_dim, or a higher limit"
            )
        server.state["calibrated"] = False
        if self.mode == "original" or (self.mode == "auto" and len(kinds) == 1):
            server.state["model"] = weights_of(server.build(server.roster[0].spec))

    def round(self, server: Server, cohort: Cohort) -> None:
        if "model" not in server.state:
            cohort.call(self.train_alone)
            return
        mean = WeightedMean(server.aggregation)
        for _, reply in cohort.stream(self.train, shared={"model": server.state["model"]}):
            mean.add(reply.weights("model"), reply.number("samples"))
        server.state["model"] = mean.result(server.memory.weights("model"))  # FedAvg

    @step(
        down={"model": WeightsField()}, up={"model": WeightsField(), "samples": ScalarField(least=0, most="samples")}
    )
    def train(self, client: Client, msg: Payload) -> Reply:
        client.load(msg.weights("model"))
        client.fit()
        return {"model": weights_of(client.model), "samples": len(client.train)}

    @step()
    def train_alone(self, client: Client, msg: Payload) -> None:
        client.fit()

    def finish(self, server: Server, everyone: Cohort) -> None:
        if "model" in server.state:
            self.finish_global(server, everyone)
            return
        tables = {name: reply.table("statistics") for name, reply in everyone.call(self.describe).items()}
        kinds = {p.name: "all" if self.pool == "all" else str(p.model) for p in server.roster}
        members = {kind: [table for name, table in tables.items() if kinds[name] == kind] for kind in kinds.values()}
        pools = {kind: self.pooled(server, tables) for kind, tables in members.items()}
        if self.pool == "all":
            server.record("warning", message="pooled statistics of extractors that are not aligned")
            everyone.call(self.calibrate, shared=pools["all"])
        else:
            everyone.call(self.calibrate, each={name: pools[kinds[name]] for name in everyone.ids})

    def finish_global(self, server: Server, everyone: Cohort) -> None:
        replies = everyone.call(self.describe, shared={"model": server.state["model"]})
        model = server.build(server.roster[0].spec)
        copy_into(model, server.memory.weights("model"))
        statistics = self.pooled(server, [reply.table("statistics") for reply in replies.values()])["statistics"]
        self.train_head(model.head, statistics, server.features, server.stream("calibrate"))
        server.state |= {"model": weights_of(model), "calibrated": True}
        everyone.call(self.load_head, shared={"head": weights_of(model.head)})

    @step(
        down={"model": WeightsField(optional=True)},
        up={"statistics": TableField(FromMethod("width"), counts=True, by_sample=True)},
    )
    def describe(self, client: Client, msg: Payload) -> Reply:
        """Return n_c, mu_c and Sigma_c of the features of every class of the client."""
        if len(msg):
            client.load(msg.weights("model"))
        table = describe_classes(
            client.clean_pass(),
            lambda x: self.transformed(client.model.features(x)),
            client.profile.features,
            diagonal=self.diagonal,
            biased=self.biased_covariance,
            min_count=self.min_class_count,
        )
        return {"statistics": table}

    def pooled(self, server: Server, tables: Sequence[ClassTable]) -> dict[str, ClassTable]:
        """Return mu_c and Sigma_c of every class over several clients."""
        return {"statistics": pool_classes(tables, server.features, diagonal=self.diagonal).without_counts()}

    @step(down={"head": WeightsField("head")})
    def load_head(self, client: Client, msg: Payload) -> None:
        client.load(msg.weights("head"), into=client.model.head)
        client.state["calibrated"] = True

    @step(down={"statistics": TableField(FromMethod("width"))})
    def calibrate(self, client: Client, msg: Payload) -> None:
        statistics = msg.table("statistics")
        self.train_head(client.model.head, statistics, client.profile.features, client.stream("calibrate"))
        client.state["calibrated"] = len(statistics) > 0  # there may be no reply from this architecture

    def train_head(self, head: nn.Module, statistics: ClassTable, features: int, stream: torch.Generator) -> None:
        """Train with CE on M_c features per class, sampled from N(mu_c, Sigma_c + eps I)."""
        features_and_labels = sample_classes(statistics, features, self.virtual, ridge=self.ridge, stream=stream)
        settings = TrainSettings(epochs=self.epochs, batch_size=self.batch_size, lr=self.lr)
        fit([head], lambda f, y: F.cross_entropy(head(f), y), features_and_labels, settings, stream)

    def publish(self, server: Server) -> Outgoing:
        return Outgoing(shared=server.state if "model" in server.state else {})

    def adopt(self, client: Client, msg: Payload) -> None:
        if len(msg):
            client.load(msg.weights("model"))
            client.state["calibrated"] = msg["calibrated"]

    def transformed(self, features: Tensor) -> Tensor:
        """Return Tukey's power transform of the features."""
        return features if self.tukey is None else features.clamp(min=0) ** self.tukey

    def predict(self, client: Client, x: Tensor) -> Tensor:
        f = client.model.features(x)
        logits: Tensor = client.model.head(self.transformed(f) if client.state.get("calibrated") else f)
        return logits
