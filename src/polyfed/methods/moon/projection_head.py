"""For a method that sends a module of its own beside its one model: one that works on the model's features.

Where clients hold sub-models with fewer features, their module has fewer inputs, at the positions of those features;
its outputs are nobody's to cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from polyfed.core import rng
from polyfed.core.client import weights_of
from polyfed.core.method import Outgoing
from polyfed.core.payload import Weights
from polyfed.core.server import Server
from polyfed.models.slicing import Index, OwnerMean, cut, extract


class ProjectionHeads:
    """Where the clients' modules lie in the server's, for the length of a round."""

    def __init__(self, server: Server, field: str, make: Callable[[int], nn.Module]) -> None:
        """`field`: its name in messages and state; `make`: the module for a number of features."""
        self._server = server
        self._field = field
        self._make = make
        self._cuts: dict[str, dict[str, Index]] = {}

    def initial(self) -> Weights:
        """The server's module before the first round."""
        family = self._server.family
        if family is None:
            return self._made(self._server.features)
        if not family.apart:
            return self._made(family.skeleton().feature_dim)
        made = {spec: self._made(family.skeleton(spec).feature_dim) for spec in family.members}
        return {name: t for spec, weights in made.items() for name, t in family.put(weights, spec).items()}

    def parts(self, ids: Sequence[str], weights: Weights) -> Outgoing:
        """Each client's part; one message for all where all hold the same."""
        family = self._server.family
        if family is None or not family.split:
            return Outgoing(shared={self._field: weights})
        specs = {name: self._server.profile(name).spec for name in ids}
        mine = {spec: extract(weights, self._cut(spec)) for spec in {*specs.values()}}
        own = {spec: {n[len(family.name(spec, "")) :]: t for n, t in part.items()} for spec, part in mine.items()}
        return Outgoing(each={name: {self._field: own[spec]} for name, spec in specs.items()})

    def add(self, mean: OwnerMean, client: str, weights: Weights, weight: float) -> None:
        """Put a client's trained module into the mean over owners."""
        family, spec = self._server.family, self._server.profile(client).spec
        if family is not None:
            weights = family.put(weights, spec)
        whole: dict[str, Index] = {name: (None,) * tensor.ndim for name, tensor in weights.items()}
        mean.add(weights, self._cut(spec) if family is not None and family.split else whole, weight)

    def _made(self, features: int) -> Weights:
        with rng.seeded(self._server.seed, self._field):
            return weights_of(self._make(features))

    def _cut(self, spec: str) -> dict[str, Index]:
        family = self._server.family
        assert family is not None
        if spec not in self._cuts:
            with torch.device("meta"):
                whole, part = (self._make(family.skeleton(s).feature_dim) for s in (family.whole, spec))
            if family.apart:
                found = {family.name(spec, n): (None,) * t.ndim for n, t in part.state_dict().items()}
            else:  # behind the extractors, so that the cut knows where the features lie
                backbones = (family.skeleton(s).backbone for s in (family.whole, spec))
                big, small = (nn.Sequential(b, m) for b, m in zip(backbones, (whole, part), strict=True))
                found = {n.removeprefix("1."): i for n, i in cut(big, small).items() if n.startswith("1.")}
            self._cuts[spec] = found
        return self._cuts[spec]
