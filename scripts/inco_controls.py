"""Controls of InCo: the same filter with meaningless anchors, or without mixing.

polyfed run inco-stage 'imports=[scripts/inco_controls.py]' 'server_filter={name: inco-control, control: permuted}'
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from polyfed.core.filter import Update, register
from polyfed.core.server import Server
from polyfed.errors import InputError
from polyfed.filters.inco import InCo
from polyfed.filters.inco.rules import MIN_NORM, Similarity


@register("inco-control")
@dataclass(frozen=True)
class AnchorControl(InCo):
    """InCo with an anchor of the same norm that has nothing to do with the target."""

    # the anchor's entries in random order, Gaussian noise, or the anchor of another stage
    control: Literal["permuted", "gaussian", "other_stage"] = "permuted"

    def check(self, server: Server) -> None:
        anchors = {anchor for _, anchor in self.pairs(server)}
        if self.control == "other_stage" and len(anchors) < 2:
            raise InputError(
                "server_filter.control is 'other_stage', but all layers of this model have the same anchor; use "
                "control: permuted or gaussian"
            )

    def shallow_update(self, server: Server, update: Update, target: str, anchor: str) -> Tensor:
        stream, owned = server.stream(f"inco {target}"), update.weight[target] > 0
        real = update.change[anchor]
        entries, replaced = real[owned], torch.zeros_like(real)
        if self.control == "permuted":
            replaced[owned] = entries[torch.randperm(len(entries), generator=stream)]
            return replaced
        if self.control == "gaussian":
            values = torch.randn(entries.shape, generator=stream, dtype=real.dtype)
        else:  # it may have another shape: repeat its entries as often as needed
            other = update.change[self.next_anchor(server, update, anchor)].reshape(-1)
            values = other.repeat(-(-len(entries) // len(other)))[: len(entries)]
        norm = values.norm()
        replaced[owned] = values * (entries.norm() / norm if norm >= MIN_NORM else 0.0)
        return replaced

    def next_anchor(self, server: Server, update: Update, anchor: str) -> str:
        """Return the anchor of the next stage that was trained in this round."""
        anchors = list(dict.fromkeys(name for _, name in self.pairs(server) if name in update.change))
        return anchors[(anchors.index(anchor) + 1) % len(anchors)]


@register("inco-length-control")
@dataclass(frozen=True)
class LengthControl(InCo):
    """InCo without mixing: an update only gets the norm that normalisation would give it. The rule has no effect."""

    rule: Literal["theorem"] = "theorem"

    def coefficient(self, similarity: Similarity) -> Tensor:
        return torch.zeros_like(similarity.theta)
