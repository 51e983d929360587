"""What a round will send, worked out from the schemas that a method's steps declare, without running anything."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from polyfed.core.method import Method
from polyfed.core.profile import Layout, Profile
from polyfed.core.schema import Dim, Field, ScalarField, Schema, TableField, TensorField, WeightsField
from polyfed.core.step import Messages

COUNT_BYTES = 4  # of the number of samples behind a row of a class table


@dataclass(frozen=True)
class Amount:
    """An upper bound in bytes for what a step's schema bounds; the fields that it leaves open are named."""

    size: int = 0
    open: tuple[str, ...] = ()

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.size + other.size, tuple(dict.fromkeys([*self.open, *other.open])))


@dataclass(frozen=True)
class Traffic:
    """At most this much per round if every step runs once: for each client, and over the clients of a round."""

    by_client: tuple[Amount, ...]
    total: Amount

    @property
    def mean(self) -> float:
        return sum(amount.size for amount in self.by_client) / len(self.by_client)


def steps_of(method: Method) -> Mapping[str, Messages]:
    """The steps of a method and their messages, in the order in which they are written."""
    found: dict[str, Messages] = {}
    for kind in reversed(type(method).__mro__):
        for name, value in vars(kind).items():
            messages = getattr(value, "messages", None)
            if isinstance(messages, Messages):
                found[name] = messages
    return found


def expected(method: Method, profiles: Sequence[Profile], held: Sequence[int], per_round: int) -> dict[str, Traffic]:
    """Traffic 'up' and 'down'. `held` is how many classes each client has samples of."""
    steps = steps_of(method).values()
    up = [
        sum((_amount(messages.up, method, p, rows=own) for messages in steps), Amount())
        for p, own in zip(profiles, held, strict=True)
    ]
    down = [sum((_amount(m.down, method, p, rows=p.classes) for m in steps), Amount()) for p in profiles]
    return {"up": _over_a_round(up, per_round), "down": _over_a_round(down, per_round)}


def _over_a_round(amounts: Sequence[Amount], per_round: int) -> Traffic:
    """Whoever is chosen, the clients of a round send no more than the largest ones."""
    largest = sorted(amounts, key=lambda amount: amount.size, reverse=True)[:per_round]
    return Traffic(tuple(amounts), sum(largest, Amount()))


def _amount(schema: Schema, method: Method, profile: Profile, rows: int) -> Amount:
    return sum((_field(name, kind, method, profile, rows) for name, kind in schema.items()), Amount())


def _field(name: str, kind: Field, method: Method, profile: Profile, rows: int) -> Amount:
    if isinstance(kind, WeightsField):
        return Amount(_layout_bytes(getattr(profile, kind.of)))
    if isinstance(kind, ScalarField):
        return Amount()  # scalars are part of a message's overhead, as in the bytes of a result
    if isinstance(kind, TableField):
        width = _dim(kind.width, method, profile)
        if width is None:
            return Amount(open=(name,))
        return Amount(rows * (width * kind.dtype.itemsize + (COUNT_BYTES if kind.counts else 0)))
    if isinstance(kind, TensorField):
        dims = [size for dim in kind.dims if (size := _dim(dim, method, profile)) is not None]
        if len(dims) == len(kind.dims):
            return Amount(math.prod(dims) * kind.dtype.itemsize)
    return Amount(open=(name,))


def _dim(dim: Dim, method: Method, profile: Profile) -> int | None:
    """A dimension's size; None for one that only the message decides."""
    if callable(dim):
        return dim(method, profile)
    if isinstance(dim, int):
        return dim
    return {"classes": profile.classes, "features": profile.features}.get(dim)


def _layout_bytes(layout: Layout) -> int:
    return sum(math.prod(shape) * getattr(torch, dtype).itemsize for _, shape, dtype in layout)
