"""What an optimiser remembers, as named tensors: for methods whose optimiser lives on from round to round."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def memory_of(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """A copy of an optimiser's memory, by number of the parameter and name of what is remembered of it."""
    state = optimizer.state_dict()["state"]
    return {f"{i}.{name}": tensor.clone() for i, slots in state.items() for name, tensor in slots.items()}


def recall(optimizer: torch.optim.Optimizer, memory: Mapping[str, Tensor]) -> None:
    """Give a new optimiser of the same parameters the memory of an earlier one; an empty memory changes nothing."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in memory.items():
        i, name = key.split(".", 1)
        state.setdefault(int(i), {})[name] = tensor.clone()
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
