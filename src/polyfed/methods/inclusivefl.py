"""InclusiveFL: no one left behind: inclusive federated learning over heterogeneous devices.

Liu, Wu, Wu, Wang, Lyu, Chen, Xie; KDD 2022, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal

import torch
from annotated_types import Interval
from torch import Tensor

from polyfed.core import Client, Cohort, Method, Needs, Outgoing, Payload, Reply, Sends, Server, Value, register, step
from polyfed.core.client import weights_of
from polyfed.core.filter import Update
from polyfed.core.options import Degenerate
from polyfed.core.payload import Weights
from polyfed.core.schema import ScalarField, WeightsField
from polyfed.core.shared_model import UpdateAggregator, apply_update, initial_weights
from polyfed.errors import InputError
from polyfed.models.slicing import OwnerMean, block_names


@register("inclusivefl")
@dataclass(frozen=True)
class InclusiveFL(Method):
    """InclusiveFL: types of different depth share their lower layers; updates of larger types guide smaller ones.

    A type is an architecture. Its head and the last block of every stage are its own; all other layers are shared.
    The paper uses stacks of Transformer layers. Here every stage of a ResNet is such a stack, and tensors without a
    partner of the same name and shape in the next larger type (the first convolution and the shortcut at the start of
    a stage) get no momentum. BatchNorm statistics are averaged and get none either. Clients send weights after local
    training, not gradients of one step. The released code applies momentum only before any was stored, and keeps the
    last of the layers that it sums over; here momentum is the mean over them in every round. As in the released code,
    momentum is that of the previous round and clients have equal weights; `momentum: same-round` and
    `weights: samples` are the alternatives.

    A client is measured with the new model of its type. Clients of a type share one model, so personal accuracy is
    low where their classes differ.
    """

    beta: Annotated[float, Interval(ge=0, le=1), Degenerate(0)] = 0.2  # weight of the larger type's update
    private_top: bool | Literal["auto"] = "auto"  # auto: the only block of a stage stays shared, without momentum
    share_head: bool = False  # one head for all types
    momentum: Literal["previous-round", "same-round"] = "previous-round"  # round of the larger type's update
    weights: Literal["samples", "uniform"] = "uniform"  # weights of clients and types: by samples, or equal
    allow_degenerate: bool = False  # accept beta 0, which disables momentum

    verdict = (
        "Shares layers between depths of one model family; better than averaging by stages, below local for own data."
    )
    needs = Needs(sub_models=True)
    sends = Sends(
        up="all weights of the model, and the number of samples",
        down="all weights of the model",
        kinds=("weights", "counts"),
    )
    averaged = ("model",)
    one_model = True
    battery_models = ("tiny-resnet10", "tiny-resnet18")

    def init(self, server: Server) -> None:
        whole = initial_weights(server)
        model = dict(whole)
        for kind in self.types(server):  # own blocks start as copies of the largest type's
            model |= {server_name: whole[name].clone() for name, server_name in kind.server_names.items()}
        server.state["model"], server.state["momentum"] = model, {}

    def round(self, server: Server, cohort: Cohort) -> None:
        model = server.memory.weights("model")
        types = {kind.spec: kind for kind in self.types(server)}
        aggregators: dict[str, UpdateAggregator] = {}
        totals: dict[str, float] = {}
        for k, reply in cohort.stream(self.train, out=self.views(server, cohort.ids)):
            spec = server.profile(k).spec
            weight = reply.number("samples") if self.weights == "samples" else 1.0
            if spec not in aggregators:
                aggregators[spec], totals[spec] = UpdateAggregator(server, types[spec].view(model)), 0.0
            aggregators[spec].add(k, reply.weights("model"), weight)
            totals[spec] += weight
        updates = {spec: aggregator.mean().change for spec, aggregator in aggregators.items()}  # step 1: g_i
        merged = self.merged(model, types, updates, totals)
        momenta = self.momenta(list(types.values()), updates, model)
        used = momenta if self.momentum == "same-round" else server.memory.weights("momentum")
        server.state["model"] = apply_update(server, model, self.guided(used, merged))
        server.state["momentum"] = {**server.memory.weights("momentum"), **momenta}

    def merged(
        self, model: Weights, types: Mapping[str, Type], updates: Mapping[str, Weights], totals: Mapping[str, float]
    ) -> Update:
        """Step 2: return the mean update of every shared layer over the types that have it, weighted by type."""
        mean = OwnerMean(model)
        for spec, update in updates.items():
            placed = {types[spec].server_names[name]: tensor for name, tensor in update.items()}
            mean.add(placed, {name: (None,) * tensor.ndim for name, tensor in placed.items()}, totals[spec])
        weight = mean.weights()
        zeros = {n: model[n].double() * 0 if model[n].is_floating_point() else model[n] for n in weight}
        return Update(mean.mean(zeros), weight)

    def guided(self, momenta: Mapping[str, Tensor], merged: Update) -> Update:
        """Step 3, momentum distillation: return (1 - beta) g_i + beta m_{i+1} for the top blocks of type i."""
        change = dict(merged.change)
        for name, momentum in momenta.items():
            if name in change:
                change[name] = (1 - self.beta) * change[name] + self.beta * momentum
        return Update(change, merged.weight)

    def momenta(self, types: Sequence[Type], updates: Mapping[str, Weights], model: Weights) -> Weights:
        """Return m_{i+1} for the tensors in the top blocks of every type i, by their names at the server.

        m_{i+1} is the mean update of the next larger type's blocks, from the position of that top block to its own
        last block. There is no momentum from a type that did not take part.
        """
        momenta: Weights = {}
        for smaller, larger in pairwise(types):
            if larger.spec not in updates:
                continue
            for own, theirs in zip(smaller.stages, larger.stages, strict=True):
                top, guides = own[-1], theirs[len(own) - 1 :]
                if top not in smaller.tops or len(guides) == 1:
                    continue
                for name, server_name in smaller.trained_in(top):
                    partners = [updates[larger.spec].get(guide + name.removeprefix(top)) for guide in guides]
                    m = [p for p in partners if p is not None and p.shape == model[server_name].shape]
                    if len(m) == len(guides):
                        momenta[server_name] = torch.stack(m).mean(0)
        return momenta

    @step(
        down={"model": WeightsField()}, up={"model": WeightsField(), "samples": ScalarField(least=0, most="samples")}
    )
    def train(self, client: Client, msg: Payload) -> Reply:
        self.adopt(client, msg)
        client.fit()
        return {"model": weights_of(client.model), "samples": len(client.train)}

    def types(self, server: Server) -> list[Type]:
        """Return the architectures, from the shallowest to the deepest."""
        family = server.family
        assert family is not None  # every federation with sub-models has one
        types: list[Type] = []
        for number, spec in enumerate(family.members):
            if any(kept is not None for index in family.cut(spec).values() for kept in index):
                raise InputError(
                    f"InclusiveFL needs models of one width, but {spec} is narrower than {family.whole}; use a group "
                    "such as tiny-resnets, or the method heterofl"
                )
            model = family.skeleton(spec)
            stages = block_names(model)
            minimum = 2 if self.private_top == "auto" else 1  # blocks of a stage that has an own last block
            tops = frozenset(stage[-1] for stage in stages if self.private_top and len(stage) >= minimum)
            own = () if spec == family.whole else (*tops, *(() if self.share_head else ("head",)))
            server_names = {n: f"{number}.{n}" if _within(n, own) else n for n in model.state_dict()}
            types.append(Type(spec, stages, tops, server_names, frozenset(n for n, _ in model.named_parameters())))
        return sorted(types, key=lambda kind: sum(len(stage) for stage in kind.stages))

    def views(self, server: Server, ids: Sequence[str]) -> Outgoing:
        """Return for each client the model of its type."""
        model = server.memory.weights("model")
        views: dict[str, Mapping[str, Value]] = {k.spec: {"model": k.view(model)} for k in self.types(server)}
        return Outgoing(each={k: views[server.profile(k).spec] for k in ids})

    def publish(self, server: Server) -> Outgoing:
        return self.views(server, [profile.name for profile in server.roster])

    def adopt(self, client: Client, msg: Payload) -> None:
        client.load(msg.weights("model"))

    def predicts_from_published(self) -> bool:
        return True


@dataclass(frozen=True)
class Type:
    """An architecture: its own blocks, and the names of its tensors at the server."""

    spec: str
    stages: tuple[tuple[str, ...], ...]  # names of blocks
    tops: frozenset[str]  # own blocks
    server_names: Mapping[str, str]  # of every tensor; own tensors are prefixed with the number of the type
    trained: frozenset[str]

    def view(self, model: Weights) -> Weights:
        """Return the model of this type from the server's tensors."""
        return {name: model[server_name] for name, server_name in self.server_names.items()}

    def trained_in(self, block: str) -> list[tuple[str, str]]:
        """Return the parameters of a block: their names in the model and at the server."""
        names = [name for name in self.server_names if name in self.trained and _within(name, (block,))]
        return [(name, self.server_names[name]) for name in names]


def _within(tensor: str, parts: Iterable[str]) -> bool:
    return any(tensor.startswith(part + ".") for part in parts)
