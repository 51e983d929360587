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
class Around:
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


class Backwards(Around):
    """Serves the last client first; answers come in the order of the tasks all the same."""

    def call(self, call: Call, shared: bytes, tasks: Sequence[Task]) -> Iterator[Answer]:
        answers = list(self.inner.call(call, shared, list(reversed(tasks))))
        return iter(reversed(answers))


@dataclass(frozen=True)
class Seen:
    """One message as it passed: of which steps, to or from which client."""

    steps: tuple[str, ...]
    client: str
    frames: tuple[bytes, ...]


@dataclass
class Watching(Around):
    """Keeps every message of every step, in both directions. Evaluations are not the method's traffic."""

    down: list[Seen] = field(default_factory=list)
    up: list[Seen] = field(default_factory=list)

    def call(self, call: Call, shared: bytes, tasks: Sequence[Task]) -> Iterator[Answer]:
        if not call.steps:
            yield from self.inner.call(call, shared, tasks)
            return
        self.down += [Seen(call.steps, t.client, (shared, t.own) if t.own else (shared,)) for t in tasks]
        for answer in self.inner.call(call, shared, tasks):
            self.up.append(Seen(call.steps, answer.client, (answer.frame,)))
            yield answer


@dataclass
class Breaking(Around):
    """Spoils the answers of some clients in every call, each time in another way, and remembers whose."""

    share: float = 0.3
    victims: Callable[[Call, Sequence[Task]], Sequence[str]] | None = None
    broken: list[tuple[int, str, str]] = field(default_factory=list)  # call, client, way

    def call(self, call: Call, shared: bytes, tasks: Sequence[Task]) -> Iterator[Answer]:
        chosen = self._chosen(call, tasks) if call.steps else ()
        for answer in self.inner.call(call, shared, tasks):
            if answer.client not in chosen:
                yield answer
                continue
            way = list(WAYS)[len(self.broken) % len(WAYS)]
            self.broken.append((call.number, answer.client, way))
            yield WAYS[way](answer)

    def _chosen(self, call: Call, tasks: Sequence[Task]) -> Sequence[str]:
        if self.victims is not None:
            return self.victims(call, tasks)
        count = max(1, round(self.share * len(tasks)))
        stream = rng.numpy_generator("breaking", call.number)
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


WAYS: dict[str, Callable[[Answer], Answer]] = {
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


StepWatcher = Callable[[str, Client, Payload, Callable[[], Reply | None]], Mapping[str, Value] | None]


def with_steps_watched(method: type[Method], watch: StepWatcher) -> type[Method]:
    """The same method with `watch` around every step: it gets the step's name, its client, its message, its body."""

    def around(name: str, body: Callable[..., Reply | None]) -> Callable[..., Reply | None]:
        @functools.wraps(body)
        def watched(self: Method, client: Client, msg: Payload) -> Reply | None:
            return watch(name, client, msg, lambda: body(self, client, msg))

        return watched

    bodies = {name: around(name, getattr(method, name)) for name in steps_of(method)}
    return type(method.__name__, (method,), bodies)
