"""Build modules on the meta device: they have shapes, but no memory and no values."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_RANDOM_VALUES = (Tensor.normal_, Tensor.uniform_, Tensor.erfinv_)  # erfinv_ belongs to truncated normal values


@contextlib.contextmanager
def meta_device() -> Iterator[None]:
    """Create tensors on the meta device, and skip random initial values.

    They would have no effect, but torch imports its compiler for them, which takes about two seconds.
    """
    with torch.device("meta"), _SkipRandomValues():
        yield


class _SkipRandomValues(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _RANDOM_VALUES and args[0].is_meta:
            return args[0]
        return func(*args, **(kwargs or {}))
