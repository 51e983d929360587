"""Controls of FedFree: other choices of layers, a server that does not learn, and another moment of evaluation.

polyfed run quickstart 'imports=[polyfed.controls.fedfree]' method=fedfree-frozen-server
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from polyfed.core import Cohort, Server, register
from polyfed.methods.fedfree.layer_transfer import MappedLayers
from polyfed.methods.fedfree.layers import Layer
from polyfed.methods.fedfree.method import FedFree
from polyfed.methods.fedfree.replacements import Candidates, LayerReplacement, UploadedLayer, largest_gains


@register("fedfree-random-replacement")
@dataclass(frozen=True)
class RandomReplacement(FedFree):
    """FedFree control: each client receives a random global layer for a random layer of its own."""

    def choose_replacements(self, server: Server, gains: Candidates) -> list[LayerReplacement]:
        generator = server.stream("returns")
        return [pairs[int(torch.randint(len(pairs), (), generator=generator))] for pairs in gains.values() if pairs]


@register("fedfree-reversed-gain")
@dataclass(frozen=True)
class ReversedGain(FedFree):
    """FedFree control: each client receives the global layer with the largest loss of entropy."""

    def choose_replacements(self, server: Server, gains: Candidates) -> list[LayerReplacement]:
        reversed_gains = {
            client: [replace(pair, gain=-pair.gain) for pair in pairs] for client, pairs in gains.items()
        }
        return [replace(pair, gain=-pair.gain) for pair in largest_gains(reversed_gains)]


@register("fedfree-frozen-server")
@dataclass(frozen=True)
class FrozenServer(FedFree):
    """FedFree control: global layers keep their random initial weights."""

    def update_layer(self, server: Server, mapped: MappedLayers) -> Layer:
        return mapped.target


@register("fedfree-before-replacement")
@dataclass(frozen=True)
class BeforeReplacement(FedFree):
    """FedFree control: clients are evaluated after local training, before a layer is replaced."""

    def distribute(self, server: Server, cohort: Cohort, uploads: Sequence[UploadedLayer]) -> None:
        cohort.measure("personal", "global")
        super().distribute(server, cohort, uploads)
