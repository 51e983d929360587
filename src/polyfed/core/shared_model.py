"""Building blocks of methods with one server model: what clients receive of it, and how it is updated.

With one architecture, every client receives the complete model. With sub-models (`splitting`), a position is averaged
over the clients that have it, and a position that no client has keeps its value. A configured `server_filter` is
applied here, to the update of any method.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from polyfed.core.client import weights_of
from polyfed.core.filter import Update
from polyfed.core.histograms import counts, edges_for
from polyfed.core.method import Outgoing
from polyfed.core.payload import Value, Weights
from polyfed.core.robust_mean import owner_mean
from polyfed.core.server import Server
from polyfed.models.slicing import Cut, Rule, coverage, only_rows, prefix


def initial_weights(server: Server) -> Weights:
    """Return the server model before the first round."""
    family = server.family
    if family is None:
        return weights_of(server.build(server.roster[0].spec))
    if not family.apart:
        return weights_of(server.build(family.whole))
    return {n: t for spec in family.members for n, t in family.put(weights_of(server.build(spec)), spec).items()}


def weights_for_clients(server: Server, ids: Sequence[str], rule: Rule = prefix, **models: Weights) -> Outgoing:
    """Return the message with each client's part of models that have the layout of the server model."""
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
    """Return the positions of a client's tensors in the server model."""
    if server.family is None:
        return {name: (None,) * tensor.ndim for name, tensor in like.items()}
    return server.family.cut(server.profile(client).spec, rule)


def position_weights(server: Server, like: Mapping[str, Tensor], each: Mapping[str, float]) -> dict[str, Tensor]:
    """Return, for each position, the sum of the weights of the clients that have it."""
    return coverage(like, ((cut_of(server, client, like), weight) for client, weight in each.items()))


def holder_counts(server: Server, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return, for each position, how many of all clients have it (N_q)."""
    return position_weights(server, like, {profile.name: 1.0 for profile in server.roster})


def buffer_names(server: Server) -> frozenset[str]:
    """Return the names of the server model's buffers (BatchNorm statistics), which are not trained."""
    family = server.family
    kinds = {profile.spec: profile.buffers for profile in server.roster}
    return frozenset(
        name if family is None else family.name(spec, name) for spec, names in kinds.items() for name in names
    )


class UpdateAggregator:
    """Weighted mean of client updates, added one at a time, or what `aggregation` of the config says instead.

    Memory does not grow with the number of clients; aggregation rules other than the mean keep all updates.

    Differences are computed and added in double precision. One client, or clients with equal weights, therefore give
    back exactly their own weights.
    """

    def __init__(self, server: Server, model: Weights, rule: Rule = prefix) -> None:
        self._server = server
        self._model = model
        self._rule = rule
        self._mean = owner_mean(server.aggregation, model)

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
        """Add one client's trained weights.

        `times` scales the change of parameters, but not of buffers. `rows` restricts the given tensors to the given
        rows (label masking). `rule` gives the positions of this client's part, if they differ from other clients'.
        """
        server, statistics = self._server, self._server.profile(client).buffers
        cut = cut_of(server, client, self._model, rule or self._rule)
        if server.family is not None:
            spec = server.profile(client).spec
            weights = server.family.put(weights, spec)
            statistics = frozenset(server.family.name(spec, name) for name in statistics)
        if rows is not None:
            weights, cut = only_rows(weights, cut, *rows)
        factors = {} if times == 1.0 else {name: times for name in weights if name not in statistics}
        self._mean.add(weights, cut, weight, minus=self._model, times=factors)

    def add_change(self, client: str, change: Weights, weight: float = 1.0) -> None:
        """Add a change that the client computed itself, with the layout of the model."""
        if self._server.family is not None:
            change = self._server.family.put(change, self._server.profile(client).spec)
        self._mean.add(change, cut_of(self._server, client, self._model, self._rule), weight)

    def mean(self) -> Update:
        """Return sum_k w_k (theta_k - theta) / sum_k w_k over the clients that have each position."""
        return Update(self._mean.mean_difference(), self._mean.weights())


def update_histograms(server: Server, update: Update, change: Weights) -> dict[str, Tensor]:
    """Return histograms of an update by parameter, and of the unfiltered update if a filter changed it."""
    buffers = buffer_names(server)
    histograms: dict[str, Tensor] = {}
    for name, by in change.items():
        if not by.is_floating_point() or name in buffers:
            continue
        owned = update.weight[name] > 0
        after, before = by[owned], update.change[name][owned]
        histograms[f"{name}.edges"] = edges = edges_for(after, before)
        histograms[f"{name}.counts"] = counts(after, edges)
        if change[name] is not update.change[name]:
            histograms[f"{name}.before"] = counts(before, edges)
    return histograms


def apply_update(server: Server, model: Weights, update: Update) -> Weights:
    """Return the server model after a filtered update. Positions without weight do not change."""
    change = update.change if server.filter is None else server.filter.apply(server, update)
    if server.histograms:
        server.save_artifact("updates", **update_histograms(server, update, change))
    after = dict(model)
    for name, by in change.items():
        old = model[name]
        value = (old.double() + by).to(old.dtype) if old.is_floating_point() else by
        if name.endswith("running_var"):
            value = value.clamp(min=0)
        after[name] = torch.where(update.weight[name] > 0, value, old)
    return after
