"""Upper bounds of the bytes that a round sends, from the schemas of a method's steps, without running anything."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from polyfed.core.client_profile import Layout, Profile
from polyfed.core.method import Method
from polyfed.core.schema import Dim, Field, ScalarField, Schema, TableField, TensorField, WeightsField
from polyfed.core.step import method_steps

COUNT_BYTES = 4  # for the sample count of a row of a class table


@dataclass(frozen=True)
class ByteBound:
    """An upper bound in bytes, and the fields whose size the schema does not bound."""

    size: int = 0
    unknown_fields: tuple[str, ...] = ()

    def __add__(self, other: ByteBound) -> ByteBound:
        unknown = dict.fromkeys([*self.unknown_fields, *other.unknown_fields])
        return ByteBound(self.size + other.size, tuple(unknown))


@dataclass(frozen=True)
class TrafficEstimate:
    """Upper bounds per round if every step runs once: for each client, and for all clients of a round together."""

    by_client: tuple[ByteBound, ...]
    total: ByteBound

    @property
    def mean(self) -> float:
        """The mean bound over clients, in bytes."""
        return sum(bound.size for bound in self.by_client) / len(self.by_client)


def estimate_traffic(
    method: Method, profiles: Sequence[Profile], class_counts: Sequence[int], per_round: int
) -> dict[str, TrafficEstimate]:
    """Return the traffic 'up' and 'down'. `class_counts` is the number of classes that each client has samples of."""
    steps = method_steps(method).values()
    up = [
        sum((_message_bound(messages.up, method, profile, rows=classes) for messages in steps), ByteBound())
        for profile, classes in zip(profiles, class_counts, strict=True)
    ]
    down = [
        sum((_message_bound(messages.down, method, profile, rows=profile.classes) for messages in steps), ByteBound())
        for profile in profiles
    ]
    return {"up": _per_round(up, per_round), "down": _per_round(down, per_round)}


def _per_round(bounds: Sequence[ByteBound], per_round: int) -> TrafficEstimate:
    """Bound a round by its largest clients, whichever clients are selected."""
    largest = sorted(bounds, key=lambda bound: bound.size, reverse=True)[:per_round]
    return TrafficEstimate(tuple(bounds), sum(largest, ByteBound()))


def _message_bound(schema: Schema, method: Method, profile: Profile, rows: int) -> ByteBound:
    return sum((_field_bound(name, field, method, profile, rows) for name, field in schema.items()), ByteBound())


def _field_bound(name: str, field: Field, method: Method, profile: Profile, rows: int) -> ByteBound:
    if isinstance(field, WeightsField):
        return ByteBound(_layout_bytes(getattr(profile, field.of)))
    if isinstance(field, ScalarField):
        return ByteBound()  # scalars count as message overhead, as in `result.json`
    if isinstance(field, TableField):
        width = _dim_size(field.width, method, profile)
        if width is None:
            return ByteBound(unknown_fields=(name,))
        return ByteBound(rows * (width * field.dtype.itemsize + (COUNT_BYTES if field.counts else 0)))
    if isinstance(field, TensorField):
        sizes = [size for dim in field.dims if (size := _dim_size(dim, method, profile)) is not None]
        if len(sizes) == len(field.dims):
            return ByteBound(math.prod(sizes) * field.dtype.itemsize)
    return ByteBound(unknown_fields=(name,))


def _dim_size(dim: Dim, method: Method, profile: Profile) -> int | None:
    """Return the size of a dimension, or None if only the message determines it."""
    if callable(dim):
        return dim(method, profile)
    if isinstance(dim, int):
        return dim
    return {"classes": profile.classes, "features": profile.features}.get(dim)


def _layout_bytes(layout: Layout) -> int:
    return sum(math.prod(shape) * getattr(torch, dtype).itemsize for _, shape, dtype in layout)
