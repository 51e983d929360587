"""Projection heads for clients with sub-models: a module on the features, sent together with the model.

A client whose sub-model has fewer features has a projection head with fewer inputs, at the positions of its features.
The outputs are the same for all clients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn

from polyfed.core import rng
from polyfed.core.client import weights_of
from polyfed.core.method import Outgoing
from polyfed.core.payload import Weights
from polyfed.core.server import Server
from polyfed.models.meta import meta_device
from polyfed.models.slicing import Index, OwnerMean, cut, extract


class ProjectionHeads:
    """The clients' projection heads as parts of the server's, for one round."""

    def __init__(self, server: Server, field: str, make: Callable[[int], nn.Module]) -> None:
        """`field` is the name in messages and state; `make` returns the module for a number of features."""
        self._server = server
        self._field = field
        self._make = make
        self._cuts: dict[str, dict[str, Index]] = {}

    def initial(self) -> Weights:
        """Return the server's projection head before the first round."""
        family = self._server.family
        if family is None:
            return self._initial_weights(self._server.features)
        if not family.apart:
            return self._initial_weights(family.skeleton().feature_dim)
        weights_by_spec = {spec: self._initial_weights(family.skeleton(spec).feature_dim) for spec in family.members}
        return {name: t for spec, weights in weights_by_spec.items() for name, t in family.put(weights, spec).items()}

    def for_clients(self, ids: Sequence[str], weights: Weights) -> Outgoing:
        """Return each client's part; one shared message if all clients hold the same."""
        family = self._server.family
        if family is None or not family.split:
            return Outgoing(shared={self._field: weights})
        specs = {name: self._server.profile(name).spec for name in ids}
        parts = {spec: extract(weights, self._cut(spec)) for spec in {*specs.values()}}
        renamed = {
            spec: {n[len(family.name(spec, "")) :]: t for n, t in part.items()} for spec, part in parts.items()
        }
        return Outgoing(each={name: {self._field: renamed[spec]} for name, spec in specs.items()})

    def add(self, mean: OwnerMean, client: str, weights: Weights, weight: float) -> None:
        """Add a client's trained projection head to the mean over the clients that hold each position."""
        family, spec = self._server.family, self._server.profile(client).spec
        if family is not None:
            weights = family.put(weights, spec)
        whole: dict[str, Index] = {name: (None,) * tensor.ndim for name, tensor in weights.items()}
        mean.add(weights, self._cut(spec) if family is not None and family.split else whole, weight)

    def _initial_weights(self, features: int) -> Weights:
        with rng.seeded(self._server.seed, self._field):
            return weights_of(self._make(features).to(self._server.device))

    def _cut(self, spec: str) -> dict[str, Index]:
        family = self._server.family
        assert family is not None
        if spec not in self._cuts:
            with meta_device():
                whole, part = (self._make(family.skeleton(s).feature_dim) for s in (family.whole, spec))
            if family.apart:
                indices = {family.name(spec, n): (None,) * t.ndim for n, t in part.state_dict().items()}
            else:  # after the extractors, so that `cut` finds the positions of the features
                backbones = (family.skeleton(s).backbone for s in (family.whole, spec))
                big, small = (nn.Sequential(b, m) for b, m in zip(backbones, (whole, part), strict=True))
                indices = {n.removeprefix("1."): i for n, i in cut(big, small).items() if n.startswith("1.")}
            self._cuts[spec] = indices
        return self._cuts[spec]
