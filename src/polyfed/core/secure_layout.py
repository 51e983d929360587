"""The vector of numbers in which a reply enters a secure sum, and the mean reply that the server reads from the sum.

Every averaged field is multiplied by its weight, and the weights are part of the vector. The layout follows from the
step's schema and the client's profile, so client and server agree on it without a message.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyfed.core.class_tables import ClassTable
from polyfed.core.client_profile import Profile
from polyfed.core.payload import Payload, Value
from polyfed.core.schema import ScalarField, Schema, TableField, WeightsField
from polyfed.errors import PayloadError

COUNTS = "counts"  # weight of a row of a class table: the number of samples behind it
Vector = np.ndarray[Any, np.dtype[np.float64]]


def to_vector(
    reply: Mapping[str, Value], schema: Schema, weights: Mapping[str, str], method: object, profile: Profile
) -> Vector:
    """Return the numbers of a reply, each averaged field times its weight."""
    message, parts = Payload(reply), list[Tensor]()
    for name, field in schema.items():
        if isinstance(field, ScalarField):
            parts.append(torch.tensor([message.number(name)], dtype=torch.float64))
        elif isinstance(field, TableField):
            parts += _table_parts(message.table(name), weights[name] == COUNTS, profile.classes)
        elif isinstance(field, WeightsField):
            weight = message.number(weights[name]) if weights[name] else 1.0
            tensors = message.weights(name)
            for path, _, _ in _layout(field, profile):
                parts.append(tensors[path].detach().cpu().double().flatten() * weight)
            parts.append(torch.tensor([weight], dtype=torch.float64))
    vector: Vector = torch.cat(parts).numpy()
    if len(vector) != vector_length(schema, method, profile):
        raise PayloadError("the reply does not have the layout that its step declares")
    return vector


def _table_parts(table: ClassTable, by_count: bool, classes: int) -> list[Tensor]:
    """Return weighted rows, weights and counts, with zeros for classes without a row."""
    table = table.to(torch.device("cpu"))
    values, present = table.dense(classes)
    counts = torch.zeros(classes, dtype=torch.float64)
    if table.counts is not None:
        counts[table.classes] = table.counts.double()
    weight = counts if by_count else present.double()
    return [(values.double() * weight[:, None]).flatten(), weight, counts]


def clipped(reply: Mapping[str, Value], received: Payload, norm: float) -> dict[str, Value]:
    """Return a reply whose updates of weights, and whose rows of class tables, have at most a norm.

    Weights that the client received under the same name are the origin of an update.
    """
    result = dict(reply)
    for name, value in reply.items():
        if isinstance(value, ClassTable):
            factor = (norm / value.values.norm(dim=1, keepdim=True).clamp(min=norm)).to(value.values.dtype)
            result[name] = ClassTable(value.classes, value.values * factor, value.counts)
        elif isinstance(value, Mapping):
            new, old = Payload(reply).weights(name), received.weights(name) if name in received else {}
            changes = {
                path: t.double() - old[path].double() if path in old else t.double()
                for path, t in new.items()
                if t.is_floating_point()
            }
            length = float(torch.stack([change.norm() for change in changes.values()]).norm())
            if length > norm:
                shrunk = {path: new[path].double() - change * (1 - norm / length) for path, change in changes.items()}
                result[name] = {**new, **{path: t.to(new[path].dtype) for path, t in shrunk.items()}}
    return result


def vector_length(schema: Schema, method: object, profile: Profile) -> int:
    """Return the length of the vector of a client."""
    total = 0
    for name, field in schema.items():
        if isinstance(field, ScalarField):
            total += 1
        elif isinstance(field, TableField):
            total += profile.classes * (_width(field, method, profile) + 2)
        elif isinstance(field, WeightsField):
            total += sum(math.prod(shape) for _, shape, _ in _layout(field, profile)) + 1
        else:
            raise PayloadError(f"field '{name}' is neither weights, a class table nor a number")
    return total


def from_vector(total: Vector, schema: Schema, method: object, profile: Profile) -> Payload:
    """Return the mean reply of a sum: means of averaged fields, and sums of numbers and counts."""
    rest, reply = torch.from_numpy(total), dict[str, Value]()
    for name, field in schema.items():
        if isinstance(field, ScalarField):
            number, rest = float(rest[0]), rest[1:]
            reply[name] = number
        elif isinstance(field, TableField):
            width, classes = _width(field, method, profile), profile.classes
            values, weight, counts, rest = rest.tensor_split(_ends([classes * width, classes, classes]))
            held = (weight > 0.5).nonzero()[:, 0]  # weights are whole numbers
            rows = values.reshape(classes, width)[held] / weight[held, None]
            number_of = counts[held].round().long() if field.counts else None
            reply[name] = ClassTable(held, rows.to(field.dtype), number_of)
        elif isinstance(field, WeightsField):
            layout = _layout(field, profile)
            *tensors, weight, rest = rest.tensor_split(_ends([math.prod(shape) for _, shape, _ in layout] + [1]))
            divisor = float(weight) or 1.0  # without weight, all sums are 0
            reply[name] = {
                path: _typed(tensor / divisor, getattr(torch, dtype)).reshape(shape)
                for tensor, (path, shape, dtype) in zip(tensors, layout, strict=True)
            }
    return Payload(reply)


def _ends(sizes: Sequence[int]) -> tuple[int, ...]:
    """Return where parts of these sizes end."""
    return tuple(int(end) for end in np.cumsum(sizes))


def _typed(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if dtype.is_floating_point else tensor.round().to(dtype)


def _layout(field: WeightsField, profile: Profile) -> Sequence[tuple[str, tuple[int, ...], str]]:
    layout: Sequence[tuple[str, tuple[int, ...], str]] = getattr(profile, field.of)
    return layout


def _width(field: TableField, method: object, profile: Profile) -> int:
    if callable(field.width):
        return field.width(method, profile)
    return field.width if isinstance(field.width, int) else int(getattr(profile, field.width))
