"""Values as rows of numbers, rows brought to a norm, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from polyfed.core.class_tables import ClassTable
from polyfed.core.payload import Value
from polyfed.errors import PolyfedError

COUNTERS = "num_batches_tracked"  # integers that BatchNorm keeps: they count batches and are left as they are
VARIANCES = "running_var"


class PrivacyError(PolyfedError):
    """A reply that may not leave as it is; nothing of it does."""


def clip_rows(rows: Tensor, clip: float) -> Tensor:
    """Every row that is longer than `clip` brought to that length."""
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return torch.where(norms > clip, rows * (clip / norms), rows)


def as_rows(name: str, value: Value, unit: str) -> Tensor:
    """The numbers of a field in double precision: a row per row of the field, or all of them as one row."""
    if isinstance(value, ClassTable):
        rows = value.values.detach().double()
    elif isinstance(value, Tensor) and unit == "row":
        if value.ndim < 2 or not value.is_floating_point():
            raise PrivacyError(f"field '{name}' is {value.dtype} of shape {tuple(value.shape)}, which has no rows")
        rows = value.detach().double().reshape(len(value), -1)
    else:
        found = [tensor.detach().double().reshape(-1) for _, tensor in leaves(name, value)]
        rows = torch.cat(found)[None] if found else torch.zeros(1, 0, dtype=torch.float64)
    if not bool(torch.isfinite(rows).all()):
        raise PrivacyError(f"field '{name}' holds values that are not finite")
    return rows.reshape(1, -1) if unit == "message" else rows


def from_rows(name: str, value: Value, rows: Tensor) -> Value:
    """A field like `value` with the numbers in `rows`."""
    if isinstance(value, ClassTable):
        return replace(value, values=rows.reshape(value.values.shape).to(value.values.dtype))
    numbers, start = rows.reshape(-1), 0
    made: dict[str, Tensor] = {}
    for path, tensor in leaves(name, value):
        stop = start + tensor.numel()
        made[path] = numbers[start:stop].reshape(tensor.shape).to(tensor.dtype)
        if path.endswith(VARIANCES):
            made[path].clamp_(min=0)  # a model cannot take the root of less; what is done after noise costs nothing
        start = stop
    return _rebuilt(name, value, made)


def leaves(path: str, value: Value) -> Iterator[tuple[str, Tensor]]:
    """The tensors to protect in a field, by their paths; what can neither be protected nor left out is refused."""
    if isinstance(value, Mapping):
        for key in sorted(value):  # two fields of the same tensors give their numbers in the same order
            yield from leaves(f"{path}/{key}", value[key])
    elif isinstance(value, Tensor) and value.is_floating_point():
        yield path, value
    elif not (isinstance(value, Tensor) and path.endswith(COUNTERS)):
        kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise PrivacyError(f"field '{path}' is of type {kind}, which noise cannot protect")


def _rebuilt(path: str, value: Value, made: Mapping[str, Tensor]) -> Value:
    if isinstance(value, Mapping):
        return {key: _rebuilt(f"{path}/{key}", item, made) for key, item in value.items()}
    return made.get(path, value)
