"""The state of an optimiser as named tensors, for an optimiser that persists over rounds."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def state_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return a copy of the state, with keys "parameter number.name"."""
    state = optimizer.state_dict()["state"]
    return {f"{i}.{name}": tensor.clone() for i, slots in state.items() for name, tensor in slots.items()}


def load_tensors(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Load the state of an earlier optimiser of the same parameters; no tensors leave it unchanged."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        i, name = key.split(".", 1)
        state.setdefault(int(i), {})[name] = tensor.clone()
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
