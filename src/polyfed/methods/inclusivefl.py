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
from polyfed.core.one_model import UpdateAggregator, apply_update, initial_weights
from polyfed.core.options import Degenerate
from polyfed.core.schema import ScalarField, WeightsField
from polyfed.errors import InputError
from polyfed.models.slicing import OwnerMean, block_names

Named = dict[str, Tensor]


@register("inclusivefl")
@dataclass(frozen=True)
class InclusiveFL(Method):
    """InclusiveFL: types of different depth share their lower layers; larger types' updates guide smaller tops.

    A type is an architecture. Its head, and in every stage the last block it owns, are its own; all else is shared.
    The paper has stacks of Transformer layers; a ResNet is taken as one stack for each stage, and what in a block has
    no partner of the same name and shape in the next larger type (the first convolution and the shortcut where a
    stage begins) gets no momentum. BatchNorm statistics are averaged (R3) and get none either. Clients send weights
    after local training, not gradients of one step. The released code applies momentum only before any was stored,
    and keeps the last of the layers that it sums over; here it is the mean over them in every round. What is
    evaluated is the model of each client's type.

    On the quickstart's skewed shares (tiny-resnets, seed 0) it ends at 37 % personal accuracy where local training
    has 92 % and FedAvg by stages 15 %: clients of a type share one model, whatever classes they have.
    """

    beta: Annotated[float, Interval(ge=0, le=1), Degenerate(0)] = 0.2  # share of the larger type's update
    private_top: bool | Literal["auto"] = "auto"  # auto: a stage's only block stays shared, and without momentum
    share_head: bool = False  # one head for all types
    weights: Literal["samples", "uniform"] = "samples"  # how clients count within and between types
    allow_degenerate: bool = False  # accept beta 0, which switches momentum off

    needs = Needs(sub_models=True)
    sends = Sends(up="all weights of the model, and the number of samples", down="all weights of the model")
    one_model = True
    battery_models = ("tiny-resnet10", "tiny-resnet18")

    def init(self, server: Server) -> None:
        whole = initial_weights(server)
        model = dict(whole)
        for kind in self.types(server):  # what is its own begins like the same part of the largest
            model |= {place: whole[name].clone() for name, place in kind.places.items()}
        server.state["model"] = model

    def round(self, server: Server, cohort: Cohort) -> None:
        model = server.memory.weights("model")
        types = {kind.spec: kind for kind in self.types(server)}
        changes: dict[str, UpdateAggregator] = {}
        share: dict[str, float] = {}
        for k, got in cohort.stream(self.train, out=self.views(server, cohort.ids)):
            spec = server.profile(k).spec
            weight = got.number("samples") if self.weights == "samples" else 1.0
            if spec not in changes:
                changes[spec], share[spec] = UpdateAggregator(server, types[spec].view(model)), 0.0
            changes[spec].add(k, got.weights("model"), weight)
            share[spec] += weight
        updates = {spec: gathered.mean().change for spec, gathered in changes.items()}  # step 1: g_i
        merged = self.merged(model, types, updates, share)
        server.state["model"] = apply_update(server, model, self.guided(list(types.values()), updates, merged))

    def merged(
        self, model: Named, types: Mapping[str, Type], updates: Mapping[str, Named], share: Mapping[str, float]
    ) -> Update:
        """Step 2: a shared layer moves by the mean over the types that have it, weighted by their shares."""
        mean = OwnerMean(model)
        for spec, update in updates.items():
            placed = {types[spec].places[name]: tensor for name, tensor in update.items()}
            mean.add(placed, {name: (None,) * tensor.ndim for name, tensor in placed.items()}, share[spec])
        weight = mean.weights()
        still = {n: model[n].double() * 0 if model[n].is_floating_point() else model[n] for n in weight}
        return Update(mean.mean(still), weight)

    def guided(self, types: Sequence[Type], updates: Mapping[str, Named], merged: Update) -> Update:
        """Step 3, momentum distillation: (1 - beta) g_i + beta m_{i+1} for the tops of type i.

        m_{i+1} is the mean update of the next larger type's blocks, from that top's place on to its own last. None
        from a type that did not take part.
        """
        change = dict(merged.change)
        for smaller, larger in pairwise(types):
            if smaller.spec not in updates or larger.spec not in updates:
                continue
            for own, theirs in zip(smaller.stages, larger.stages, strict=True):
                top, guides = own[-1], theirs[len(own) - 1 :]
                if top not in smaller.tops or len(guides) == 1:
                    continue
                for name, place in smaller.trained_in(top):
                    partners = [updates[larger.spec].get(guide + name.removeprefix(top)) for guide in guides]
                    m = [p for p in partners if p is not None and p.shape == change[place].shape]
                    if len(m) == len(guides):
                        change[place] = (1 - self.beta) * change[place] + self.beta * torch.stack(m).mean(0)
        return Update(change, merged.weight)

    @step(down={"model": WeightsField()}, up={"model": WeightsField(), "samples": ScalarField(least=0)})
    def train(self, client: Client, msg: Payload) -> Reply:
        self.adopt(client, msg)
        client.fit()
        return {"model": weights_of(client.model), "samples": len(client.train)}

    def types(self, server: Server) -> list[Type]:
        """The architectures, from the shallowest to the deepest."""
        family = server.family
        assert family is not None  # every federation with sub-models has one
        found: list[Type] = []
        for number, spec in enumerate(family.members):
            if any(kept is not None for index in family.cut(spec).values() for kept in index):
                raise InputError(
                    f"InclusiveFL needs models of one width, but {spec} is narrower than {family.whole}; use a group "
                    "such as tiny-resnets, or HeteroFL for widths"
                )
            model = family.skeleton(spec)
            stages = block_names(model)
            least = 2 if self.private_top == "auto" else 1  # blocks of a stage whose last is the type's own
            tops = frozenset(stage[-1] for stage in stages if self.private_top and len(stage) >= least)
            own = () if spec == family.whole else (*tops, *(() if self.share_head else ("head",)))
            places = {n: f"{number}.{n}" if _within(n, own) else n for n in model.state_dict()}
            found.append(Type(spec, stages, tops, places, frozenset(n for n, _ in model.named_parameters())))
        return sorted(found, key=lambda kind: sum(len(stage) for stage in kind.stages))

    def views(self, server: Server, ids: Sequence[str]) -> Outgoing:
        """To each client the model of its type."""
        model = server.memory.weights("model")
        made: dict[str, Mapping[str, Value]] = {k.spec: {"model": k.view(model)} for k in self.types(server)}
        return Outgoing(each={k: made[server.profile(k).spec] for k in ids})

    def publish(self, server: Server) -> Outgoing:
        return self.views(server, [profile.name for profile in server.roster])

    def adopt(self, client: Client, msg: Payload) -> None:
        client.load(msg.weights("model"))

    def predicts_from_published(self) -> bool:
        return True


@dataclass(frozen=True)
class Type:
    """An architecture: which blocks are its own, and where the server keeps each of its tensors."""

    spec: str
    stages: tuple[tuple[str, ...], ...]  # names of blocks
    tops: frozenset[str]  # its own blocks
    places: Mapping[str, str]  # of the model's tensors, by name; what is its own is kept under the type's number
    trained: frozenset[str]

    def view(self, model: Named) -> Named:
        return {name: model[place] for name, place in self.places.items()}

    def trained_in(self, block: str) -> list[tuple[str, str]]:
        return [(n, place) for n, place in self.places.items() if n in self.trained and _within(n, (block,))]


def _within(tensor: str, parts: Iterable[str]) -> bool:
    return any(tensor.startswith(part + ".") for part in parts)
