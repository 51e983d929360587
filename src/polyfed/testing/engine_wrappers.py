"""Engines that stand around another one: they look at what passes, change the order of work, or break things."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor

from polyfed.core import rng
from polyfed.core.class_tables import ClassTable
from polyfed.core.client import Client
from polyfed.core.codec import decode, encode
from polyfed.core.engine import Answer, Call, Engine, Failure, Task
from polyfed.core.method import Method
from polyfed.core.payload import Payload, Value
from polyfed.core.step import Messages, Reply


@dataclass
class EngineWrapper:
    """Passes everything on. Made first, then put around an engine by calling it."""

    inner: Engine = field(init=False)
    concurrent = False

    def __call__(self, inner: Engine) -> Self:
        self.inner = inner
        return self

    def call(self, call: Call, shared: bytes, tasks: Sequence[Task]) -> Iterator[Answer]:
        return self.inner.call(call, shared, tasks)

    def peak_memory(self) -> int:
        return self.inner.peak_memory()

    def close(self) -> None:
        self.inner.close()


class ReversedEngine(EngineWrapper):
    """Serves the last client first; answers come in the order of the tasks all the same."""

    def call(self, call: Call, shared: bytes, tasks: Sequence[Task]) -> Iterator[Answer]:
        answers = list(self.inner.call(call, shared, list(reversed(tasks))))
        return iter(reversed(answers))


@dataclass(frozen=True)
class RecordedMessage:
    """One message as it passed: of which steps, to or from which client."""

    steps: tuple[str, ...]
    client: str
    frames: tuple[bytes, ...]


@dataclass
class RecordingEngine(EngineWrapper):
    """Keeps every message of every step, in both directions. Evaluations are not the method's traffic."""

    down: list[RecordedMessage] = field(default_factory=list)
    up: list[RecordedMessage] = field(default_factory=list)

    def call(self, call: Call, shared: bytes, tasks: Sequence[Task]) -> Iterator[Answer]:
        if not call.steps:
            yield from self.inner.call(call, shared, tasks)
            return
        self.down += [RecordedMessage(call.steps, t.client, (shared, t.own) if t.own else (shared,)) for t in tasks]
        for answer in self.inner.call(call, shared, tasks):
            self.up.append(RecordedMessage(call.steps, answer.client, (answer.frame,)))
            yield answer


@dataclass
class FaultyEngine(EngineWrapper):
    """Spoils the answers of some clients in every call, each time in another fault, and remembers whose."""

    fraction: float = 0.3
    failing_clients: Callable[[Call, Sequence[Task]], Sequence[str]] | None = None
    injected: list[tuple[int, str, str]] = field(default_factory=list)  # call, client, fault

    def call(self, call: Call, shared: bytes, tasks: Sequence[Task]) -> Iterator[Answer]:
        chosen = self._chosen(call, tasks) if call.steps else ()
        for answer in self.inner.call(call, shared, tasks):
            if answer.client not in chosen:
                yield answer
                continue
            fault = list(FAULTS)[len(self.injected) % len(FAULTS)]
            self.injected.append((call.number, answer.client, fault))
            yield FAULTS[fault](answer)

    def _chosen(self, call: Call, tasks: Sequence[Task]) -> Sequence[str]:
        if self.failing_clients is not None:
            return self.failing_clients(call, tasks)
        count = max(1, round(self.fraction * len(tasks)))
        stream = rng.numpy_generator("faulty", call.number)
        return [tasks[i].client for i in stream.choice(len(tasks), size=count, replace=False)]


def _raised(answer: Answer) -> Answer:
    return Answer(answer.client, failure=Failure("raised", "RuntimeError: the disk of this client is full"))


def _late(answer: Answer) -> Answer:
    return Answer(answer.client, failure=Failure("timeout", "no answer within 1 seconds"))


def _damaged(answer: Answer) -> Answer:
    middle = len(answer.frame) // 2
    flipped = bytes([answer.frame[middle] ^ 0x10])
    return replace(answer, frame=answer.frame[:middle] + flipped + answer.frame[middle + 1 :])


def _not_finite(answer: Answer) -> Answer:
    """NaN in every number of the reply; a reply without tensors gets one that nobody declared."""
    touched: list[Tensor] = []

    def spoil(tensor: Tensor) -> Tensor:
        touched.append(tensor)
        return torch.full_like(tensor, torch.nan) if tensor.is_floating_point() else tensor

    spoiled = each_tensor(dict(decode(answer.frame)), spoil)
    return replace(answer, frame=encode({**spoiled, **({} if touched else {"stray": torch.zeros(1)})}).data)


FAULTS: dict[str, Callable[[Answer], Answer]] = {
    "raised": _raised,
    "timeout": _late,
    "damaged": _damaged,
    "not finite": _not_finite,
}


def each_tensor(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A copy of a payload in which every tensor (the rows of a table too) is replaced."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, ClassTable):
        return ClassTable(value.classes, change(value.values), value.counts)
    if isinstance(value, Mapping):
        return {key: each_tensor(item, change) for key, item in value.items()}
    return value


def steps_of(method: type[Method]) -> dict[str, Messages]:
    """The steps of a method by name, with their declared messages."""
    found = {}
    for name, member in inspect.getmembers(method, callable):
        messages = getattr(member, "messages", None)
        if isinstance(messages, Messages):
            found[name] = messages
    return found


StepWrapper = Callable[[str, Client, Payload, Callable[[], Reply | None]], Mapping[str, Value] | None]


def with_wrapped_steps(method: type[Method], watch: StepWrapper) -> type[Method]:
    """The same method with `watch` around every step: it gets the step's name, its client, its message, its body."""

    def around(name: str, body: Callable[..., Reply | None]) -> Callable[..., Reply | None]:
        @functools.wraps(body)
        def watched(self: Method, client: Client, msg: Payload) -> Reply | None:
            return watch(name, client, msg, lambda: body(self, client, msg))

        return watched

    bodies = {name: around(name, getattr(method, name)) for name in steps_of(method)}
    return type(method.__name__, (method,), bodies)
