"""For methods that keep one model at the server: each client's part of it, and the mean change over its owners.

With one architecture for all, every client's part is the whole model. With sub-models (`splitting`), a position is
averaged over the clients that hold it, and what nobody holds keeps its bits (B0). The same lines serve both, and
whatever the config puts between an update and the model (`server_filter`) sees every method's update here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from polyfed.core.client import weights_of
from polyfed.core.filter import Update
from polyfed.core.method import Outgoing
from polyfed.core.payload import Value, Weights
from polyfed.core.server import Server
from polyfed.models.slicing import Cut, OwnerMean, Rule, coverage, only_rows, prefix, select
from polyfed.training.histograms import counts, edges_for


def initial_weights(server: Server) -> Weights:
    """The server's model before the first round."""
    family = server.family
    if family is None:
        return weights_of(server.build(server.roster[0].spec))
    if not family.apart:
        return weights_of(server.build(family.whole))
    return {n: t for spec in family.members for n, t in family.put(weights_of(server.build(spec)), spec).items()}


def weights_for_clients(server: Server, ids: Sequence[str], rule: Rule = prefix, **models: Weights) -> Outgoing:
    """Each client's part of models that are laid out as the server's; one message for all where all hold the same."""
    family = server.family
    if family is None or not family.split:
        return Outgoing(shared=models)
    specs = {profile.name: profile.spec for profile in server.roster}
    cut_out: dict[str, Mapping[str, Value]] = {
        spec: {field: family.take(weights, spec, rule) for field, weights in models.items()}
        for spec in sorted({specs[name] for name in ids})
    }
    return Outgoing(each={name: cut_out[specs[name]] for name in ids})


def cut_of(server: Server, client: str, like: Mapping[str, Tensor], rule: Rule = prefix) -> Cut:
    """Where a client's tensors lie in the server's model."""
    if server.family is None:
        return {name: (None,) * tensor.ndim for name, tensor in like.items()}
    return server.family.cut(server.profile(client).spec, rule)


def position_weights(server: Server, like: Mapping[str, Tensor], each: Mapping[str, float]) -> dict[str, Tensor]:
    """The sum of these clients' numbers over those of them that hold each position."""
    return coverage(like, ((cut_of(server, client, like), weight) for client, weight in each.items()))


def holder_counts(server: Server, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """How many clients of the whole population hold each position (the N_q of B5)."""
    return position_weights(server, like, {profile.name: 1.0 for profile in server.roster})


def buffer_names(server: Server) -> frozenset[str]:
    """What of the server's model is counted rather than trained (BatchNorm's buffers), by its names there."""
    family = server.family
    kinds = {profile.spec: profile.buffers for profile in server.roster}
    return frozenset(
        name if family is None else family.name(spec, name) for spec, names in kinds.items() for name in names
    )


class UpdateAggregator:
    """Gathers what clients made of their parts, one at a time: holds one sum, whatever the number of clients.

    Differences are formed and added in double precision, so that one owner, and equal owners, give their own weights
    back to the last bit.
    """

    def __init__(self, server: Server, model: Weights, rule: Rule = prefix) -> None:
        self._server = server
        self._model = model
        self._rule = rule
        self._mean = OwnerMean(model)

    def add(
        self,
        client: str,
        weights: Weights,
        weight: float = 1.0,
        *,
        times: float = 1.0,
        rows: tuple[Sequence[str], Tensor] | None = None,
        rule: Rule | None = None,
    ) -> None:
        """One client's trained part. `times` lengthens the change of what is trained, but not that of statistics.

        `rows`: of these tensors only these rows count (label masking, B0). `rule`: where this client's part lies,
        if not where everybody's does.
        """
        server, statistics = self._server, self._server.profile(client).buffers
        cut = cut_of(server, client, self._model, rule or self._rule)
        if server.family is not None:
            spec = server.profile(client).spec
            weights = server.family.put(weights, spec)
            statistics = frozenset(server.family.name(spec, name) for name in statistics)
        if rows is not None:
            weights, cut = only_rows(weights, cut, *rows)
        change: Weights = {}
        for name, new in weights.items():
            if not new.is_floating_point():
                change[name] = new
                continue
            change[name] = new.double().sub_(select(self._model[name], cut[name]))
            if times != 1.0 and name not in statistics:
                change[name].mul_(times)
        self._mean.add(change, cut, weight)

    def add_change(self, client: str, change: Weights, weight: float = 1.0) -> None:
        """A change that the client has formed itself, of something that is laid out as the model."""
        if self._server.family is not None:
            change = self._server.family.put(change, self._server.profile(client).spec)
        self._mean.add(change, cut_of(self._server, client, self._model, self._rule), weight)

    def mean(self) -> Update:
        """sum_k w_k (theta_k - theta) / sum_k w_k over the owners of each position."""
        weight = self._mean.weights()
        nothing = {
            name: torch.zeros_like(old, dtype=torch.float64) if old.is_floating_point() else old
            for name, old in self._model.items()
            if name in weight
        }
        return Update(self._mean.mean(nothing), weight)


def update_histograms(server: Server, update: Update, change: Weights) -> dict[str, Tensor]:
    """Histograms of what moves the model, by trained tensor; where a filter changed it, of what was before too."""
    counted = buffer_names(server)
    found: dict[str, Tensor] = {}
    for name, by in change.items():
        if not by.is_floating_point() or name in counted:
            continue
        owned = update.weight[name] > 0
        after, before = by[owned], update.change[name][owned]
        found[f"{name}.edges"] = edges = edges_for(after, before)
        found[f"{name}.counts"] = counts(after, edges)
        if change[name] is not update.change[name]:
            found[f"{name}.before"] = counts(before, edges)
    return found


def apply_update(server: Server, model: Weights, update: Update) -> Weights:
    """The server's model after an update, through the server's filter; positions without an owner keep their bits."""
    change = update.change if server.filter is None else server.filter.apply(server, update)
    if server.histograms:
        server.save_artifact("updates", **update_histograms(server, update, change))
    after = dict(model)
    for name, by in change.items():
        old = model[name]
        value = (old.double() + by).to(old.dtype) if old.is_floating_point() else by
        if name.endswith("running_var"):
            value = value.clamp(min=0)  # R3
        after[name] = torch.where(update.weight[name] > 0, value, old)
    return after
