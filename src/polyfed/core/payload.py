"""Payloads: the content of messages and states. Tensors, class tables, JSON scalars and mappings of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from polyfed.core.class_tables import ClassTable
from polyfed.errors import PayloadError

Scalar = bool | int | float | str | None
Value = Tensor | ClassTable | Scalar | Mapping[str, "Value"]
Weights = dict[str, Tensor]


class MissingFieldError(PayloadError, KeyError):
    """A missing field. It is also a KeyError, so that `in` and `get` work as for any mapping."""

    __str__ = Exception.__str__


class Payload(Mapping[str, Value]):
    """A received message or a reply: a read-only mapping with typed access to its fields."""

    def __init__(self, fields: Mapping[str, Value] | None = None) -> None:
        self._fields = dict(fields or {})

    def __getitem__(self, name: str) -> Value:
        try:
            return self._fields[name]
        except KeyError:
            present = ", ".join(sorted(self._fields)) or "nothing"
            raise MissingFieldError(f"the message has no field '{name}'; it holds {present}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __repr__(self) -> str:
        return f"Payload({', '.join(self._fields)})"

    def tensor(self, name: str) -> Tensor:
        value = self[name]
        if not isinstance(value, Tensor):
            raise PayloadError(f"the field '{name}' is a {type(value).__name__}, not a tensor")
        return value

    def table(self, name: str) -> ClassTable:
        value = self[name]
        if not isinstance(value, ClassTable):
            raise PayloadError(f"the field '{name}' is a {type(value).__name__}, not a class table")
        return value

    def weights(self, name: str) -> Weights:
        """Return a flat mapping of named tensors, such as a state dict."""
        value = self[name]
        if not isinstance(value, Mapping):
            raise PayloadError(f"the field '{name}' is a {type(value).__name__}, not named weights")
        tensors = {key: item for key, item in value.items() if isinstance(item, Tensor)}
        if len(tensors) != len(value):
            raise PayloadError(f"the field '{name}' holds something other than named tensors")
        return tensors

    def number(self, name: str) -> float:
        value = self[name]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise PayloadError(f"the field '{name}' is a {type(value).__name__}, not a number")
        return value

    def text(self, name: str) -> str:
        value = self[name]
        if not isinstance(value, str):
            raise PayloadError(f"the field '{name}' is a {type(value).__name__}, not a string")
        return value


State = dict[str, Value]


def detached_copy(state: Mapping[str, Value]) -> State:
    """Return a deep copy of a state with contiguous tensors and without gradients."""

    def copy(value: Value) -> Value:
        if isinstance(value, Tensor):
            return value.detach().clone(memory_format=torch.contiguous_format)
        if isinstance(value, ClassTable):
            counts = None if value.counts is None else value.counts.clone()
            return ClassTable(value.classes.clone(), value.values.detach().clone(), counts)
        return {key: copy(item) for key, item in value.items()} if isinstance(value, Mapping) else value

    return {name: copy(value) for name, value in state.items()}


def view(state: Mapping[str, Value]) -> Payload:
    """Return typed, read-only access to a state."""
    return state if isinstance(state, Payload) else Payload(state)
