"""Servers with an InCo filter, and updates for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from polyfed.core.filter import Update
from polyfed.core.server import Server
from polyfed.methods.fedavg import FedAvg
from polyfed.testing.toy_federation import ToyFederation

MODELS: dict[str, list[Any]] = {  # by splitting
    "stage": ["tiny-resnet10", "tiny-resnet18"],
    "layer": ["tiny-vit-2", "tiny-vit-3"],
    "width": [{"name": "tiny-resnet-wide", "width": 0.5}, "tiny-resnet-wide"],
}
CLASS_COUNTS = ((4, 4, 0, 0), (0, 4, 4, 0), (0, 0, 4, 4))  # of clients with small and large models in turn


def server_with_filter(splitting: str, name: str = "inco", **fields: Any) -> Server:
    """Return a server of a small federation whose filter has the given fields."""
    with ToyFederation(FedAvg, {}) as toy:
        toy.models = MODELS[splitting]
        config = toy.config(CLASS_COUNTS, splitting=splitting, server_filter={"name": name, **fields})
        federation = toy.federation(config)
        return federation.server(federation.profiles())


def random_update(server: Server, owned: Mapping[str, Tensor] | None = None) -> Update:
    """Return a random update of all tensors. It is zero at positions that no client owns."""
    assert server.family is not None
    stream = torch.Generator().manual_seed(3)
    change: dict[str, Tensor] = {}
    weight: dict[str, Tensor] = {}
    for name, like in server.family.skeleton().state_dict().items():
        shape = like.shape
        weight[name] = torch.ones(shape, dtype=torch.float64)
        if owned is not None and name in owned:
            weight[name] = owned[name].double()
        if like.is_floating_point():
            change[name] = torch.randn(shape, generator=stream, dtype=torch.float64) * 0.01 * (weight[name] > 0)
        else:
            change[name] = torch.ones(shape, dtype=like.dtype)
    return Update(change, weight)
