"""HeteroFL: computation and communication efficient federated learning for heterogeneous clients.

Diao, Ding, Tarokh; ICLR 2021, Algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from annotated_types import Gt
from torch import Tensor

from polyfed.core import Client, Cohort, Method, Needs, Outgoing, Payload, Reply, Sends, Server, Value, register, step
from polyfed.core.client import weights_of
from polyfed.core.one_model import UpdateAggregator, apply_update, cut_of, initial_weights
from polyfed.core.schema import ScalarField, TensorField, TreeField, WeightsField
from polyfed.models import ModelSpec
from polyfed.models.slicing import PooledStatistics, Rule, classifier_tensors, divided, extract, prefix, statistics_of
from polyfed.training import Loss
from polyfed.training.batchnorm import by_batch_statistics, recalibrate


@register("heterofl")
@dataclass(frozen=True)
class HeteroFL(Method):
    """HeteroFL: clients train the leading channels of one model, each position is averaged over those who hold it.

    A client's level is its model and does not change; the paper's option to draw levels anew each round is left out.
    What is evaluated is each client's slice of the server's model, so full-width clients measure that model itself.
    BatchNorm statistics are measured by clients, as the paper says, and not by the server on everybody's raw data, as
    the released code does; each architecture has its own, since a narrow slice sees other inputs than the whole.

    On the quickstart's skewed shares (tiny-widths, seed 0) it ends at 16 % personal accuracy where local training has
    89 %: one model serves everybody, which holds for FedAvg as well (24 %). Among own classes only it has 58 %.
    """

    weights: Literal["uniform", "samples"] = "uniform"  # how clients count at a position they hold
    scaler: Literal["training", "always", "off"] = "training"  # divide a slice's activations by its width rate
    mask_absent_classes: bool = True  # classes a client lacks: out of its loss, and their rows out of its share
    mask_value: Literal[0, "-inf"] = 0  # what masked logits become; at 0 they still take probability
    bn: Literal["static-clients", "batch", "average"] = "static-clients"  # statistics: measured, the batch's, R3
    statistics: Literal["every-round", "finish"] = "every-round"  # when static-clients measures; before, the batch's
    clip_norm: Annotated[float, Gt(0)] | None = 1.0  # largest norm of a gradient; null leaves it to train.clip_norm
    masked_accuracy: bool = False  # measure also with answers among own classes only, the paper's local accuracy

    needs = Needs(sub_models=True)
    sends = Sends(
        up="the weights of the slice, which classes the client has, how many samples, BatchNorm statistics",
        down="the weights of the client's slice of the model, and how wide it is",
    )
    one_model = True

    def init(self, server: Server) -> None:
        server.state["model"] = initial_weights(server)

    def round(self, server: Server, cohort: Cohort) -> None:
        model = server.memory.weights("model")
        changes = UpdateAggregator(server, model)
        for k, got in cohort.stream(self.train, out=self.slices(server, cohort.ids), shared=self.news(server)):
            changes.add(
                k,
                got.weights("model"),
                got.number("samples") if self.weights == "samples" else 1.0,
                rows=self.own_rows(server, k, got),
                rule=self.rule(server, k),
            )
        server.state["model"] = apply_update(server, model, changes.mean())
        if self.statistics == "every-round" and server.round < server.rounds:
            self.collect(server, cohort)

    def finish(self, server: Server, everyone: Cohort) -> None:
        self.collect(server, everyone)

    def rule(self, server: Server, client: str) -> Rule:
        """Which channels a client holds: the first ones."""
        return prefix

    def news(self, server: Server) -> Mapping[str, Value]:
        """What else clients are told before they train."""
        return {}

    def slices(self, server: Server, ids: Sequence[str], *, evaluate: bool = False) -> Outgoing:
        """Each client's slice of the model; for an evaluation with its statistics, where they were measured."""
        model = server.memory.weights("model")
        made: dict[tuple[str, Rule], Mapping[str, Value]] = {}
        each: dict[str, Mapping[str, Value]] = {}
        for k in ids:
            profile, rule = server.profile(k), self.rule(server, k)
            if (profile.spec, rule) not in made:
                cut = cut_of(server, k, model, rule)
                sent = {n: index for n, index in cut.items() if self.bn == "average" or n not in profile.buffers}
                made[profile.spec, rule] = {"model": extract(model, sent), "rate": rate_of(server, k)}
                if evaluate and (known := _place(server, k)) in server.state:
                    statistics = server.memory.weights(known)
                    measured = extract(statistics, {n: index for n, index in cut.items() if n in statistics})
                    made[profile.spec, rule] = {**made[profile.spec, rule], "statistics": measured}
            each[k] = made[profile.spec, rule]
        return Outgoing(each=each)

    @step(
        down={"model": TreeField(), "rate": ScalarField(least=0)},
        up={
            "model": TreeField(like="model"),
            "samples": ScalarField(least=0),
            "present": TensorField(("classes",), torch.bool, optional=True),
        },
    )
    def train(self, client: Client, msg: Payload) -> Reply:
        received = msg.weights("model")
        client.load(weights_of(client.model) | received)
        clip: dict[str, Any] = {} if self.clip_norm is None else {"clip_norm": self.clip_norm}
        with divided(client.model, 1.0 if self.scaler == "off" else msg.number("rate")):
            client.fit(self.loss(client, msg), **clip)
        trained = {name: tensor for name, tensor in weights_of(client.model).items() if name in received}
        reply: dict[str, Value] = {"model": trained, "samples": len(client.train)}
        return reply | ({"present": present(client)} if self.mask_absent_classes else {})

    def loss(self, client: Client, msg: Payload) -> Loss:
        """Cross-entropy on masked logits."""
        return lambda x, y: F.cross_entropy(self.masked(client, client.model(x)), y)

    def masked(self, client: Client, logits: Tensor) -> Tensor:
        if not self.mask_absent_classes:
            return logits
        return logits.masked_fill(~present(client), 0.0 if self.mask_value == 0 else -math.inf)

    def own_rows(self, server: Server, client: str, got: Payload) -> tuple[Sequence[str], Tensor] | None:
        """The classifier rows that count: those of the client's classes."""
        if not self.mask_absent_classes:
            return None
        family = server.family
        assert family is not None  # every federation with sub-models has one
        names = classifier_tensors(family.skeleton(server.profile(client).spec))
        return names, got.tensor("present").nonzero()[:, 0]

    # static BatchNorm: statistics of the new model, measured by clients and merged by counts

    def collect(self, server: Server, cohort: Cohort) -> None:
        if self.bn != "static-clients" or not any(profile.statistics for profile in server.roster):
            return
        model = server.memory.weights("model")
        pooled: dict[str, PooledStatistics] = {}
        for k, got in cohort.stream(self.measure, out=self.slices(server, cohort.ids)):
            place = _place(server, k)
            before = server.memory.weights(place) if place in server.state else statistics_of(model)
            if place not in pooled:
                pooled[place] = PooledStatistics(before)
            if got.number("samples") > 0:
                cut = cut_of(server, k, model, self.rule(server, k))
                pooled[place].add(got.weights("statistics"), cut, got.number("samples"))
        server.state.update({place: both.result() for place, both in pooled.items()})

    @step(
        down={"model": TreeField(), "rate": ScalarField(least=0)},
        up={"statistics": WeightsField("statistics"), "samples": ScalarField(least=0)},
    )
    def measure(self, client: Client, msg: Payload) -> Reply:
        """One pass over the client's data with the statistics of its batches; a single sample has none."""
        client.load(weights_of(client.model) | msg.weights("model"))
        with divided(client.model, msg.number("rate") if self.scaler == "always" else 1.0):
            recalibrate(client.model, client.train, client.settings.batch_size, shuffle=client.stream("statistics"))
        count = len(client.train) if len(client.train) > 1 else 0
        return {"statistics": statistics_of(weights_of(client.model)), "samples": count}

    # evaluation

    def publish(self, server: Server) -> Outgoing:
        return self.slices(server, [profile.name for profile in server.roster], evaluate=True)

    def adopt(self, client: Client, msg: Payload) -> None:
        measured = msg.weights("statistics") if "statistics" in msg else {}
        client.load(weights_of(client.model) | msg.weights("model") | measured)
        client.state["rate"] = msg.number("rate")
        client.state["by_batch"] = self.bn == "batch" or (self.bn == "static-clients" and not measured)

    def predict(self, client: Client, x: Tensor) -> Tensor:
        with divided(client.model, client.memory.number("rate") if self.scaler == "always" else 1.0):
            if client.state["by_batch"]:
                return by_batch_statistics(client.model, x)
            return super().predict(client, x)

    def also_predict(self) -> Mapping[str, Callable[[Client, Tensor], Tensor]]:
        return {"own classes": self.predict_own_classes} if self.masked_accuracy else {}

    def predict_own_classes(self, client: Client, x: Tensor) -> Tensor:
        return self.predict(client, x).masked_fill(~present(client), -math.inf)

    def predicts_from_published(self) -> bool:
        return not self.masked_accuracy


def present(client: Client) -> Tensor:
    """Which classes a client has training samples of."""
    return torch.bincount(client.train.labels, minlength=client.classes) > 0


def rate_of(server: Server, client: str) -> float:
    """The width of a client's slice relative to the server's model (r)."""
    family = server.family
    if family is None:
        return 1.0
    return ModelSpec.parse(server.profile(client).spec).width / ModelSpec.parse(family.whole).width


def _place(server: Server, client: str) -> str:
    """Where the server keeps the statistics of a client's architecture."""
    family = server.family
    return f"statistics {0 if family is None else family.members.index(server.profile(client).spec)}"
