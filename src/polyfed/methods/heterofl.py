"""HeteroFL: computation and communication efficient federated learning for heterogeneous clients.

Diao, Ding, Tarokh; ICLR 2021, Algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from annotated_types import Gt
from torch import Tensor

from polyfed.core import Client, Cohort, Method, Needs, Outgoing, Payload, Reply, Sends, Server, Value, register, step
from polyfed.core.client import weights_of
from polyfed.core.payload import view
from polyfed.core.robust_mean import pooled_statistics
from polyfed.core.schema import ScalarField, TensorField, TreeField, WeightsField
from polyfed.core.shared_model import UpdateAggregator, apply_update, cut_of, initial_weights
from polyfed.models import ModelSpec
from polyfed.models.slicing import PooledStatistics, Rule, classifier_tensors, divided, extract, prefix, statistics_of
from polyfed.training import Loss
from polyfed.training.batchnorm import by_batch_statistics, recalibrate


@register("heterofl")
@dataclass(frozen=True)
class HeteroFL(Method):
    """HeteroFL: clients train the leading channels of one model; each position is averaged over its holders.

    The level of a client is its model and does not change; the paper's option to draw levels in every round is not
    implemented. Clients measure the BatchNorm statistics, as the paper says; in the released code the server measures
    them on all raw data. Each architecture has its own statistics, because a narrow slice has other activations than
    the whole model. They come from the participants of a round, and after the last round from all clients.

    A client is measured with its slice of the server's new model. The accuracy "by server model" is that of the whole
    model, which the paper reports; if no client holds it, it uses the statistics of the test batch. One model serves
    all clients, so personal accuracy is low where their classes differ, except among own classes (`masked_accuracy`).
    """

    weights: Literal["uniform", "samples"] = "uniform"  # weights of clients at a position they hold
    scaler: Literal["training", "always", "off"] = "training"  # when to divide activations by the width rate
    mask_absent_classes: bool = True  # mask logits of absent classes, and do not average their classifier rows
    mask_value: Literal[0, "-inf"] = 0  # value of masked logits; at 0 they still have probability
    bn: Literal["static-clients", "batch", "average"] = "static-clients"  # measured by clients, per batch, averaged
    statistics: Literal["every-round", "finish"] = "every-round"  # when static-clients measures; per batch until then
    clip_norm: Annotated[float, Gt(0)] | None = 1.0  # maximum gradient norm; null: train.clip_norm
    masked_accuracy: bool = False  # also evaluate among own classes only, the paper's local accuracy
    whole_accuracy: bool = True  # also evaluate the server's whole model, which clients receive for that

    verdict = "Lets clients of different widths train one model; good for one task for all, poor for skewed labels."
    needs = Needs(sub_models=True)
    sends = Sends(
        up="weights of the slice, the classes present, the number of samples, BatchNorm statistics",
        down="weights of the client's slice of the model, and its relative width",
        kinds=("weights", "counts"),
    )
    averaged: ClassVar[tuple[str, ...]] = ("model", "statistics")
    one_model = True

    def init(self, server: Server) -> None:
        server.state["model"] = initial_weights(server)

    def round(self, server: Server, cohort: Cohort) -> None:
        model = server.memory.weights("model")
        updates = UpdateAggregator(server, model)
        out = self.slices(server, cohort.ids)
        for k, reply in cohort.stream(self.train, out=out, shared=self.announcement(server)):
            updates.add(
                k,
                reply.weights("model"),
                reply.number("samples") if self.weights == "samples" else 1.0,
                rows=self.own_rows(server, k, reply),
                rule=self.rule(server, k),
            )
        server.state["model"] = apply_update(server, model, updates.mean())
        if self.statistics == "every-round" and server.round < server.rounds:
            self.collect(server, cohort)

    def finish(self, server: Server, everyone: Cohort) -> None:
        self.collect(server, everyone)

    def rule(self, server: Server, client: str) -> Rule:
        """Return which channels a client holds: the first ones."""
        return prefix

    def announcement(self, server: Server) -> Mapping[str, Value]:
        """Return what all clients receive in addition to their slice."""
        return {}

    def slices(self, server: Server, ids: Sequence[str], *, evaluate: bool = False) -> Outgoing:
        """Return each client's slice of the model; for an evaluation with measured statistics, if there are any."""
        model = server.memory.weights("model")
        slices: dict[tuple[str, Rule], Mapping[str, Value]] = {}
        each: dict[str, Mapping[str, Value]] = {}
        for k in ids:
            profile, rule = server.profile(k), self.rule(server, k)
            if (profile.spec, rule) not in slices:
                cut = cut_of(server, k, model, rule)
                sent = {n: index for n, index in cut.items() if self.bn == "average" or n not in profile.buffers}
                slices[profile.spec, rule] = {"model": extract(model, sent), "rate": rate_of(server, k)}
                if evaluate and (key := self.statistics_key(server, k)) in server.state:
                    statistics = server.memory.weights(key)
                    measured = extract(statistics, {n: index for n, index in cut.items() if n in statistics})
                    slices[profile.spec, rule] = {**slices[profile.spec, rule], "statistics": measured}
            each[k] = slices[profile.spec, rule]
        return Outgoing(each=each)

    @step(
        down={"model": TreeField(), "rate": ScalarField(least=0)},
        up={
            "model": TreeField(like="model"),
            "samples": ScalarField(least=0, most="samples"),
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
        """Return the loss function: cross-entropy on masked logits."""
        return lambda x, y: F.cross_entropy(self.masked(client, client.model(x)), y)

    def masked(self, client: Client, logits: Tensor) -> Tensor:
        if not self.mask_absent_classes:
            return logits
        return logits.masked_fill(~present(client), 0.0 if self.mask_value == 0 else -math.inf)

    def own_rows(self, server: Server, client: str, reply: Payload) -> tuple[Sequence[str], Tensor] | None:
        """Return the classifier rows to average: those of the client's classes."""
        if not self.mask_absent_classes:
            return None
        family = server.family
        assert family is not None  # every federation with sub-models has one
        names = classifier_tensors(family.skeleton(server.profile(client).spec))
        return names, reply.tensor("present").cpu().nonzero()[:, 0]

    # Static BatchNorm: clients measure the statistics of the new model, and the server pools them by counts.

    def collect(self, server: Server, cohort: Cohort) -> None:
        """Let clients measure BatchNorm statistics, and pool them."""
        if self.bn != "static-clients" or not any(profile.statistics for profile in server.roster):
            return
        model = server.memory.weights("model")
        pooled: dict[str, PooledStatistics] = {}
        for k, reply in cohort.stream(self.measure, out=self.slices(server, cohort.ids)):
            key = self.statistics_key(server, k)
            previous = server.memory.weights(key) if key in server.state else statistics_of(model)
            if key not in pooled:
                pooled[key] = pooled_statistics(server.aggregation, previous)
            if reply.number("samples") > 0:
                cut = cut_of(server, k, model, self.rule(server, k))
                pooled[key].add(reply.weights("statistics"), cut, reply.number("samples"))
        server.state.update({key: statistics.result() for key, statistics in pooled.items()})

    @step(
        down={"model": TreeField(), "rate": ScalarField(least=0)},
        up={"statistics": WeightsField("statistics"), "samples": ScalarField(least=0, most="samples")},
    )
    def measure(self, client: Client, msg: Payload) -> Reply:
        """Measure BatchNorm statistics in one pass over the client's data; a single sample has none."""
        client.load(weights_of(client.model) | msg.weights("model"))
        with divided(client.model, msg.number("rate") if self.scaler == "always" else 1.0):
            recalibrate(client.model, client.train, client.settings.batch_size, shuffle=client.stream("statistics"))
        count = len(client.train) if len(client.train) > 1 else 0
        return {"statistics": statistics_of(weights_of(client.model)), "samples": count}

    def statistics_key(self, server: Server, client: str) -> str:
        """Return the key in the server state for the statistics of a client's slice: those of its architecture."""
        return architecture_statistics(server, server.profile(client).spec)

    def publish(self, server: Server) -> Outgoing:
        slices = self.slices(server, [profile.name for profile in server.roster], evaluate=True)
        return Outgoing(self.whole_model(server) if self.whole_accuracy else {}, slices.each)

    def whole_model(self, server: Server) -> dict[str, Value]:
        """Return the server's model with the statistics of clients that hold all of it, if there are any."""
        whole = server.roster[0].spec if server.family is None else server.family.whole
        model, key = server.memory.weights("model"), architecture_statistics(server, whole)
        statistics = server.memory.weights(key) if key in server.state else {}
        measured = bool(statistics) or self.bn == "average"
        return {"whole": {"spec": whole, "model": {**model, **statistics}, "measured": measured}}

    def adopt(self, client: Client, msg: Payload) -> None:
        measured = msg.weights("statistics") if "statistics" in msg else {}
        client.load(weights_of(client.model) | msg.weights("model") | measured)
        client.state["rate"] = msg.number("rate")
        client.state["by_batch"] = self.bn == "batch" or (self.bn == "static-clients" and not measured)
        if "whole" in msg:
            client.state["whole"] = msg["whole"]

    def predict(self, client: Client, x: Tensor) -> Tensor:
        with divided(client.model, client.memory.number("rate") if self.scaler == "always" else 1.0):
            if client.state["by_batch"]:
                return by_batch_statistics(client.model, x)
            return super().predict(client, x)

    def also_predict(self) -> Mapping[str, Callable[[Client, Tensor], Tensor]]:
        own = {"own classes": self.predict_own_classes} if self.masked_accuracy else {}
        return {**own, **({"server model": self.predict_with_server_model} if self.whole_accuracy else {})}

    def predict_own_classes(self, client: Client, x: Tensor) -> Tensor:
        return self.predict(client, x).masked_fill(~present(client), -math.inf)

    def predict_with_server_model(self, client: Client, x: Tensor) -> Tensor:
        whole = client.state["whole"]
        assert isinstance(whole, Mapping)  # every evaluation publishes it
        server_model = client.build(str(whole["spec"])).eval()
        client.load(view(whole).weights("model"), into=server_model)
        if self.bn == "batch" or not whole["measured"]:
            return by_batch_statistics(server_model, x)
        logits: Tensor = server_model(x)
        return logits

    def predicts_from_published(self) -> bool:
        return not self.masked_accuracy


def present(client: Client) -> Tensor:
    """Return a mask of the classes of which a client has training samples."""
    labels = client.train.labels
    return labels.new_zeros(client.classes, dtype=torch.bool).index_fill_(0, labels, True)


def rate_of(server: Server, client: str) -> float:
    """Return r, the width of a client's slice relative to the server's model."""
    family = server.family
    if family is None:
        return 1.0
    return ModelSpec.parse(server.profile(client).spec).width / ModelSpec.parse(family.whole).width


def architecture_statistics(server: Server, spec: str) -> str:
    """Return the key in the server state for the statistics of an architecture."""
    members = () if server.family is None else server.family.members
    return f"statistics {members.index(spec) if spec in members else len(members)}"
