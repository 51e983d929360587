"""An engine in which one client lies: its replies have valid shapes and false values, another lie in every round."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from polyfed.core.class_tables import ClassTable
from polyfed.core.codec import decode, encode
from polyfed.core.engine import Answer, Call, Task
from polyfed.testing.engine_wrappers import EngineWrapper, each_tensor

Fields = dict[str, Any]


def floats(change: Callable[[Tensor], Tensor]) -> Callable[[Fields], Fields]:
    """Return a lie that changes every tensor of floats."""

    def lie(fields: Fields) -> Fields:
        return dict(each_tensor(fields, lambda t: change(t) if t.is_floating_point() else t))

    return lie


def out_of_range(fields: Fields) -> Fields:
    """Labels, counts and other integers far beyond what exists."""
    largest = torch.iinfo(torch.int32).max
    return dict(
        each_tensor(fields, lambda t: t if t.is_floating_point() else torch.full_like(t, largest).to(t.dtype))
    )


def wrong_counts(fields: Fields) -> Fields:
    """A thousand times as many samples as the client has."""

    def counted(value: Any) -> Any:
        if isinstance(value, ClassTable) and value.counts is not None:
            return ClassTable(value.classes, value.values, value.counts * 1000)
        return value * 1000 if isinstance(value, int | float) and not isinstance(value, bool) else value

    return {name: counted(value) for name, value in fields.items()}


def empty(fields: Fields) -> Fields:
    """Class tables without rows, mappings without entries and numbers that are 0."""

    def emptied(value: Any) -> Any:
        if isinstance(value, ClassTable):
            return value.only([])
        if isinstance(value, Mapping):
            return {}
        return 0 if isinstance(value, int | float) and not isinstance(value, bool) else value

    return {name: emptied(value) for name, value in fields.items()}


LIES: dict[str, Callable[[Fields], Fields] | None] = {
    "huge": floats(lambda t: torch.full_like(t, 1e20 if t.dtype != torch.float16 else 6e4)),
    "tiny": floats(lambda t: t * 1e-20),
    "zeros": floats(torch.zeros_like),
    "sign-flipped": floats(torch.neg),
    "constant": floats(torch.ones_like),
    "not a number": floats(lambda t: torch.full_like(t, torch.nan)),
    "out of range": out_of_range,
    "wrong counts": wrong_counts,
    "empty": empty,
    "another client's values": None,  # the reply of the client before it
}


@dataclass
class LyingEngine(EngineWrapper):
    """One client lies in every call, with the lies in turn, one per round."""

    liar: str
    first: int = 0  # the lie of the first round

    def call(self, call: Call, shared: bytes, tasks: Sequence[Task]) -> Iterator[Answer]:
        lie = list(LIES.values())[(call.round - 1 + self.first) % len(LIES)]
        honest: Answer | None = None
        for answer in self.inner.call(call, shared, tasks):
            if answer.client != self.liar or answer.failure is not None or not call.steps:
                honest = answer
                yield answer
            elif lie is None:
                yield replace(answer, frame=honest.frame if honest is not None else answer.frame)
            else:
                yield replace(answer, frame=encode(lie(dict(decode(answer.frame)))).data)
