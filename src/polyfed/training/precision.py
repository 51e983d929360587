"""Numerical precision: double precision where a device has it, and lower precision of training on request."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Literal

import torch
from torch import Tensor

Precision = Literal["fp32", "tf32", "bf16"]


def double(tensor: Tensor) -> Tensor:
    """Return a tensor in double precision. Devices of Apple have none, so it is copied to the CPU there."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()


_UNCHANGED = contextlib.nullcontext()  # one for all steps: the context is entered in every one


def use_precision(precision: Precision, device: torch.device) -> AbstractContextManager[None]:
    """Compute in a precision inside the context. `fp32` changes nothing on a CPU."""
    return _UNCHANGED if precision == "fp32" and device.type != "cuda" else _changed(precision, device)


@contextlib.contextmanager
def _changed(precision: Precision, device: torch.device) -> Iterator[None]:
    if device.type == "cuda":
        before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
        allowed = precision != "fp32"
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = allowed, allowed
    try:
        if precision == "bf16":
            with torch.autocast(device.type, torch.bfloat16):
                yield
        else:
            yield
    finally:
        if device.type == "cuda":
            torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
