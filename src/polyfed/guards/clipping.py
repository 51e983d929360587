"""Clipping: convert fields to rows of numbers, clip their norms, and convert them back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from polyfed.core.class_tables import ClassTable
from polyfed.core.payload import Value
from polyfed.errors import PolyfedError

COUNTERS = "num_batches_tracked"  # BatchNorm's batch counters; they are not protected
VARIANCES = "running_var"


class PrivacyError(PolyfedError):
    """A reply that must not be sent. No part of it is."""


def clip_rows(rows: Tensor, clip: float) -> Tensor:
    """Scale rows with an L2 norm above `clip` down to it."""
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return torch.where(norms > clip, rows * (clip / norms), rows)


def as_rows(name: str, value: Value, unit: str) -> Tensor:
    """Return the numbers of a field in double precision: its rows, or all numbers as one row (unit `message`)."""
    if isinstance(value, ClassTable):
        rows = value.values.detach().double()
    elif isinstance(value, Tensor) and unit == "row":
        if value.ndim < 2 or not value.is_floating_point():
            raise PrivacyError(f"field '{name}' is {value.dtype} of shape {tuple(value.shape)}, which has no rows")
        rows = value.detach().double().reshape(len(value), -1)
    else:
        flat = [tensor.detach().double().reshape(-1) for _, tensor in protected_tensors(name, value)]
        rows = torch.cat(flat)[None] if flat else torch.zeros(1, 0, dtype=torch.float64)
    if not bool(torch.isfinite(rows).all()):
        raise PrivacyError(f"field '{name}' holds values that are not finite")
    return rows.reshape(1, -1) if unit == "message" else rows


def from_rows(name: str, value: Value, rows: Tensor) -> Value:
    """Return a field with the structure of `value` and the numbers of `rows`."""
    if isinstance(value, ClassTable):
        return replace(value, values=rows.reshape(value.values.shape).to(value.values.dtype))
    numbers, start = rows.reshape(-1), 0
    tensors: dict[str, Tensor] = {}
    for path, tensor in protected_tensors(name, value):
        stop = start + tensor.numel()
        tensors[path] = numbers[start:stop].reshape(tensor.shape).to(tensor.dtype)
        if path.endswith(VARIANCES):
            tensors[path].clamp_(min=0)  # a variance; post-processing does not cost privacy
        start = stop
    return _replace_tensors(name, value, tensors)


def protected_tensors(path: str, value: Value) -> Iterator[tuple[str, Tensor]]:
    """Yield the floating-point tensors of a field with their paths. Raise PrivacyError for other values."""
    if isinstance(value, Mapping):
        for key in sorted(value):  # a fixed order of the numbers
            yield from protected_tensors(f"{path}/{key}", value[key])
    elif isinstance(value, Tensor) and value.is_floating_point():
        yield path, value
    elif not (isinstance(value, Tensor) and path.endswith(COUNTERS)):
        kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise PrivacyError(f"field '{path}' is of type {kind}, which noise cannot protect")


def _replace_tensors(path: str, value: Value, tensors: Mapping[str, Tensor]) -> Value:
    if isinstance(value, Mapping):
        return {key: _replace_tensors(f"{path}/{key}", item, tensors) for key, item in value.items()}
    return tensors.get(path, value)
