"""Controls of InCo: the same filter with meaningless anchors, or without mixing.

polyfed run inco-stage 'imports=[polyfed.controls.inco]' 'server_filter={name: inco-control, control: permuted}'
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
from polyfed.filters.inco.filter import Mixed
from polyfed.filters.inco.rules import MIN_NORM, divide


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
    """InCo without mixing: updates keep their direction and get another norm. It shows what a longer step does."""

    # mixed: the norm that the update has after InCo; mean: the mean norm of both updates, as in normalisation alone
    length: Literal["mixed", "mean"] = "mixed"

    def mix(self, g_k: Tensor, g_0: Tensor, owned: Tensor | None = None) -> Mixed:
        mixed = super().mix(g_k, g_0, owned)
        mask = torch.ones_like(g_k, dtype=torch.bool) if owned is None else owned.expand(g_k.shape)
        deep, shallow, new = (self.rows((t * mask).double()) for t in (g_k, g_0, mixed.update))
        norm = deep.norm(dim=1, keepdim=True)
        wanted = new.norm(dim=1, keepdim=True)
        if self.length == "mean":
            wanted = (norm + shallow.norm(dim=1, keepdim=True)) / 2
        scaled = divide(deep * wanted, norm, norm >= MIN_NORM).reshape(g_k.shape).to(g_k.dtype)
        return mixed._replace(update=torch.where(mask, scaled, g_k), theta=torch.zeros_like(mixed.theta))
