"""InCo Aggregation: internal cross-layer gradients for extending homogeneity to heterogeneity in federated learning.

Chan, Zhou, Zhao, Jiang, Ngai; ICLR 2024, Algorithm 1 and Theorem 3.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from polyfed.core.filter import ServerFilter, Update, register
from polyfed.core.payload import Weights
from polyfed.core.server import Server
from polyfed.errors import InputError
from polyfed.filters.inco.pairing import Pairs, find_pairs, raise_no_pairs
from polyfed.filters.inco.rules import RULES, Similarity, UpdatePair


class Mixed(NamedTuple):
    """The new update of a layer, with the numbers that are recorded."""

    update: Tensor
    theta: Tensor  # mean coefficient of the shallow update
    beta: Tensor  # inner products of both updates, one per row


@register("inco")
@dataclass(frozen=True)
class InCo(ServerFilter):
    """InCo: mixes the update of a stage's first layer into the updates of its deeper layers of the same shape.

    The theorem, the algorithm box and the released code are three rules. They differ where the two updates point in
    the same direction: `theorem` leaves the deep update alone, `algorithm1` removes the shallow direction from it,
    `released` (the released code, with its undocumented limits on the coefficient and on entries) adds more of it.
    Where the shallow update is zero, the deep one is left alone; the released code halves it.

    The accuracy of each architecture on the common test set is measured, as in the paper: one client per architecture
    with the server's new model. Results: docs/results/inco.md.
    """

    rule: Literal["released", "abs", "theorem", "algorithm1", "sum", "off"] = "released"  # sum: without optimisation
    normalise: bool = True  # mix directions and scale the result to the mean norm of both updates
    granularity: Literal["auto", "kernel", "tensor"] = "auto"  # auto: kernel for released, tensor for the others
    pairing: Literal["auto", "resnet_ref", "resnet_paper", "vit_norm", "generic"] = "auto"  # which layers are mixed
    max_theta: Annotated[float, Gt(0)] = 5.0  # released: largest coefficient
    max_entry: Annotated[float, Gt(0)] = 0.1  # released, normalised: largest entry of the result
    epsilon: Annotated[float, Ge(0)] = 1e-7  # released: added to denominators

    def check(self, server: Server) -> None:
        self.pairs(server)

    def apply(self, server: Server, update: Update) -> Weights:
        change = dict(update.change)
        mixed: dict[str, Mixed] = {}
        for target, anchor in self.pairs(server):
            if target not in update.change:
                continue  # no participant of the round has the layer
            # Anchors are at most as deep as their targets: a client with the target also has the anchor.
            assert anchor in update.change, f"'{target}' was trained in this round, but its anchor '{anchor}' was not"
            owned = update.weight[target] > 0
            shallow = self.shallow_update(server, update, target, anchor)
            mixed[target] = self.mix(update.change[target], shallow, None if bool(owned.all()) else owned)
            change[target] = mixed[target].update
        if mixed:
            server.record(
                "inco",
                layers=list(mixed),
                theta=[float(layer.theta) for layer in mixed.values()],
                beta=[float(layer.beta.mean()) for layer in mixed.values()],
                positive=[float((layer.beta > 0).double().mean()) for layer in mixed.values()],
            )
        return change

    def shallow_update(self, server: Server, update: Update, target: str, anchor: str) -> Tensor:
        """Return g_0 for a target: the update of its anchor before any mixing."""
        return update.change[anchor]

    def mix(self, g_k: Tensor, g_0: Tensor, owned: Tensor | None = None) -> Mixed:
        """Mix a shallow update into a deep one. Only owned positions take part."""
        deep, shallow = self.rows(g_k.double()), self.rows(g_0.double())
        mask = None if owned is None else self.rows(owned.expand(g_k.shape))
        epsilon = self.epsilon if RULES[self.rule].has_epsilon else 0.0
        pair = UpdatePair(*((deep, shallow) if mask is None else (deep * mask, shallow * mask)), epsilon)
        # A layer without an update of its own gets none.
        theta = self.coefficient(pair.similarity(normalise=self.normalise)) * pair.has_deep
        if self.rule == "off":
            mixed = pair.deep
        elif self.normalise:
            limits_entries = RULES[self.rule].limits_entries
            mixed = pair.mixed_directions(theta, self.max_entry if limits_entries else None)
        else:
            mixed = pair.mixed(theta)
        if mask is not None:
            mixed = torch.where(mask, mixed, deep)
        return Mixed(mixed.reshape(g_k.shape).to(g_k.dtype), theta.mean(), pair.beta)

    def coefficient(self, similarity: Similarity) -> Tensor:
        """Return the coefficient of the shallow update, row by row."""
        return RULES[self.rule].coefficient(similarity, self.max_theta)

    def rows(self, tensor: Tensor) -> Tensor:
        """Reshape to one row per set of entries with common inner products: a convolution kernel, or the tensor."""
        by_kernel = self.granularity == "kernel" or (self.granularity == "auto" and RULES[self.rule].by_kernel)
        if by_kernel and tensor.ndim > 2:
            return tensor.reshape(tensor.shape[0] * tensor.shape[1], -1)
        return tensor.reshape(1, -1)

    def pairs(self, server: Server) -> Pairs:
        """Return targets and anchors by their names in the server's model."""
        family = server.family
        if family is None:
            raise InputError("server_filter inco needs a server model that can be taken apart; this one is not known")
        members = family.members if family.apart else (family.whole,)
        pairs = tuple(
            (family.name(spec, target), family.name(spec, anchor))
            for spec in members
            for target, anchor in find_pairs(family.skeleton(spec), self.pairing)
        )
        if not pairs:
            raise_no_pairs(self.pairing, members)
        return pairs
