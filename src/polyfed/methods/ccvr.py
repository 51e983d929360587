"""CCVR: no fear of heterogeneity, classifier calibration for federated learning with non-IID data.

Luo, Chen, Hu, Zhang, Liang, Feng; NeurIPS 2021, Algorithm 1 (classifier calibration with virtual representations).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyfed.core import (
    ClassTable,
    Client,
    Cohort,
    Method,
    Needs,
    Outgoing,
    Payload,
    Reply,
    Scalar,
    Sends,
    Server,
    Table,
    Weights,
    register,
    step,
)
from polyfed.core.averaging import WeightedMean
from polyfed.core.client import copy_into, weights_of
from polyfed.core.method import reject_zero
from polyfed.core.profile import Profile
from polyfed.core.rows import fit_rows
from polyfed.errors import InputError
from polyfed.training import TrainSettings
from polyfed.training.gaussians import Gaussian, describe, draw, pooled


def _width(method: object, profile: Profile) -> int:
    """Numbers in a mean and a covariance."""
    d = profile.features
    return d + (d if isinstance(method, CCVR) and method.covariance == "diagonal" else d * d)


@register("ccvr")
@dataclass(frozen=True)
class CCVR(Method):
    """CCVR: after the last round heads are trained anew on features drawn from pooled class statistics.

    Clients of one architecture train by FedAvg, and the server calibrates the head of the global model: the published
    method. Clients of different architectures train alone, and each calibrates its own head on statistics pooled over
    all; that is how later papers compare with it. Covariances have the divisor n - 1 that the pooling formula is made
    for; popular implementations use n (`biased_covariance`). Singular covariances are drawn from by eigenvectors.

    With different models this ends far below local training: on the quickstart @@. The extractors are not aligned, so
    features of one model say nothing about classes in another, and a head trained on all of them fits none;
    `pool: architecture` pools where that makes sense.
    """

    mode: Literal["auto", "original", "hetero"] = "auto"  # auto: original where all clients have one architecture
    pool: Literal["all", "architecture"] = "all"  # hetero: statistics of all clients, or of equal models only
    virtual: int = 1000  # M_c, features drawn per class
    lr: float = 0.01  # of the head's calibration (plain SGD)
    epochs: int = 10  # passes over the drawn features
    batch_size: int = 64  # drawn features in a step
    ridge: float = 1e-4  # eps, added to every variance before drawing
    covariance: Literal["full", "diagonal"] = "full"  # diagonal: d numbers per class in place of d^2
    tukey: float | None = None  # power that features, which must not be negative, are raised to first; 0.5 is usual
    min_class_count: int = 1  # classes with fewer samples are not sent
    limit_mib: float = 256.0  # refuse statistics of a client that are larger than this
    biased_covariance: bool = False  # a popular fault: divisor n, pooled by the formula for n - 1
    allow_degenerate: bool = False  # accept 0 virtual features or epochs, which calibrates nothing

    needs = Needs(same_features=True, same_classes=True)
    sends = Sends(
        up="once: mean and covariance of features per class, with counts; with one architecture all weights each round",
        down="once: pooled statistics, or the calibrated head; with one architecture all weights each round",
    )

    def __post_init__(self) -> None:
        reject_zero(self, "virtual", "epochs")
        if self.tukey is not None and not self.tukey > 0:
            raise InputError(f"method.tukey is {self.tukey}; a power above 0 is needed, or null for none")

    def init(self, server: Server) -> None:
        kinds = {profile.model: profile for profile in server.roster}
        if self.mode == "original" and len(kinds) > 1:
            found = ", ".join(f"client {p.name} has {p.architecture}" for p in list(kinds.values())[:2])
            raise InputError(f"method.mode is 'original', which needs one architecture, but {found}; use 'hetero'")
        size = 4 * server.classes * _width(self, server.roster[0]) / 2**20
        if size > self.limit_mib:
            raise InputError(
                f"the class statistics of a client take {size:.0f} MiB, and method.limit_mib is {self.limit_mib:g}; "
                "set method.covariance: diagonal, a smaller models.feature_dim, or a higher limit"
            )
        server.state["calibrated"] = False
        if self.mode == "original" or (self.mode == "auto" and len(kinds) == 1):
            server.state["model"] = weights_of(server.build(server.roster[0].spec))

    def round(self, server: Server, cohort: Cohort) -> None:
        if "model" not in server.state:
            cohort.call(self.train_alone)
            return
        mean = WeightedMean()
        for _, got in cohort.stream(self.train, shared={"model": server.state["model"]}):
            mean.add(got.weights("model"), got.number("samples"))
        server.state["model"] = mean.result(server.memory.weights("model"))  # FedAvg

    @step(down={"model": Weights()}, up={"model": Weights(), "samples": Scalar()})
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
        got = {name: reply.table("statistics") for name, reply in everyone.call(self.describe).items()}
        if self.pool == "all":
            server.record("warning", message="statistics of extractors that are not aligned were pooled")
            everyone.call(self.calibrate, shared={"statistics": self.pooled(server, got.values())})
            return
        kinds = {profile.name: profile.model for profile in server.roster}
        pools = {
            kind: self.pooled(server, (table for name, table in got.items() if kinds[name] == kind))
            for kind in dict.fromkeys(kinds[name] for name in got)
        }
        each = {name: {"statistics": pools[kinds[name]]} for name in everyone.ids if kinds[name] in pools}
        everyone.call(self.calibrate, each=each)

    def finish_global(self, server: Server, everyone: Cohort) -> None:
        got = everyone.call(self.describe, shared={"model": server.state["model"]})
        model = server.build(server.roster[0].spec)
        copy_into(model, server.memory.weights("model"))
        statistics = self.pooled(server, (reply.table("statistics") for reply in got.values()))
        self.train_head(model.head, statistics, server.stream("calibrate"))
        server.state |= {"model": weights_of(model), "calibrated": True}
        everyone.call(self.take_head, shared={"head": weights_of(model.head)})

    @step(down={"model": Weights(optional=True)}, up={"statistics": Table(_width, counts=True)})
    def describe(self, client: Client, msg: Payload) -> Reply:
        """n_c, mu_c and Sigma_c of the features of every class here."""
        if len(msg):
            client.load(msg.weights("model"))
        with torch.no_grad():
            seen = [(self.shaped(client.model.features(x)), y) for x, y in client.clean_pass()]
        f, y = torch.cat([f for f, _ in seen]), torch.cat([y for _, y in seen])
        classes, counts = y.unique(return_counts=True)
        diagonal = self.covariance == "diagonal"
        found = {
            c: describe(f[y == c], diagonal=diagonal, biased=self.biased_covariance)
            for c in classes[counts >= self.min_class_count].tolist()
        }
        return {"statistics": _packed(found, _width(self, client.profile))}

    def pooled(self, server: Server, tables: Iterable[ClassTable]) -> ClassTable:
        """N_c, mu_c and Sigma_c of every class over all clients."""
        parts: dict[int, list[Gaussian]] = {}
        for table in tables:
            for c, gaussian in _unpacked(table, server.features).items():
                parts.setdefault(c, []).append(gaussian)
        whole = {c: pooled(several) for c, several in parts.items()}
        return _packed(whole, _width(self, server.roster[0])).without_counts()

    @step(down={"head": Weights("head")})
    def take_head(self, client: Client, msg: Payload) -> None:
        client.load(msg.weights("head"), into=client.model.head)
        client.state["calibrated"] = True

    @step(down={"statistics": Table(_width, optional=True)})
    def calibrate(self, client: Client, msg: Payload) -> None:
        if len(msg):  # it may be that nobody of this architecture answered
            self.train_head(client.model.head, msg.table("statistics"), client.stream("calibrate"))
            client.state["calibrated"] = True

    def train_head(self, head: nn.Module, statistics: ClassTable, stream: torch.Generator) -> None:
        """CE on M_c features drawn from N(mu_c, Sigma_c + eps I) for every class."""
        width = next(head.parameters()).shape[1]
        classes = _unpacked(statistics, width).values()
        drawn = [draw(gaussian, self.virtual, ridge=self.ridge, stream=stream) for gaussian in classes]
        rows = [ClassTable(statistics.classes, torch.stack(row)) for row in zip(*drawn, strict=True)]
        settings = TrainSettings(epochs=self.epochs, batch_size=self.batch_size, lr=self.lr)
        fit_rows([head], lambda f, y: F.cross_entropy(head(f), y), rows, settings, stream)

    def publish(self, server: Server) -> Outgoing:
        return Outgoing(shared=server.state if "model" in server.state else {})

    def adopt(self, client: Client, msg: Payload) -> None:
        if len(msg):
            client.load(msg.weights("model"))
            client.state["calibrated"] = msg["calibrated"]

    def shaped(self, features: Tensor) -> Tensor:
        return features if self.tukey is None else features.clamp(min=0) ** self.tukey

    def predict(self, client: Client, x: Tensor) -> Tensor:
        f = client.model.features(x)
        logits: Tensor = client.model.head(self.shaped(f) if client.state.get("calibrated") else f)
        return logits


def _packed(classes: Mapping[int, Gaussian], width: int) -> ClassTable:
    """One row per class: its mean, then its covariance."""
    rows = {c: torch.cat([g.mean, g.covariance.flatten()]).float() for c, g in classes.items()}
    table = ClassTable.of(rows, width)
    return ClassTable(table.classes, table.values, torch.tensor([classes[c].count for c in sorted(classes)]).long())


def _unpacked(table: ClassTable, features: int) -> dict[int, Gaussian]:
    counts = [1] * len(table) if table.counts is None else table.counts.tolist()
    found = {}
    for c, count, row in zip(table.classes.tolist(), counts, table.values, strict=True):
        mean, spread = row[:features], row[features:]
        full = len(spread) == features**2
        found[c] = Gaussian(count, mean, spread.reshape(features, features) if full else spread)
    return found
