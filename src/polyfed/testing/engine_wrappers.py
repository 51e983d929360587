"""Engine wrappers for tests: they record messages, change the order of clients or inject faults."""

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

STATISTICS = ("running_mean", "running_var")


@dataclass
class EngineWrapper:
    """Base of wrappers. It forwards every call. Create a wrapper, then call it with the engine to wrap."""

    inner: Engine = field(init=False)
    concurrent = False
    trusted = True

    @property
    def evaluates_after_steps(self) -> bool:
        return self.inner.evaluates_after_steps

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
    """Runs the last client first. Answers are still in task order."""

    def call(self, call: Call, shared: bytes, tasks: Sequence[Task]) -> Iterator[Answer]:
        answers = list(self.inner.call(call, shared, list(reversed(tasks))))
        return iter(reversed(answers))


@dataclass(frozen=True)
class RecordedMessage:
    """One recorded message, with its steps and client."""

    steps: tuple[str, ...]
    client: str
    frames: tuple[bytes, ...]


@dataclass
class RecordingEngine(EngineWrapper):
    """Records every message of every step in both directions, but not those of evaluations."""

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
    """Injects a fault into the answers of some clients in every call, taking the `FAULTS` in turn."""

    fraction: float = 0.3
    failing_clients: Callable[[Call, Sequence[Task]], Sequence[str]] | None = None
    injected: list[tuple[int, str, str]] = field(default_factory=list)  # (call, client, fault)

    def call(self, call: Call, shared: bytes, tasks: Sequence[Task]) -> Iterator[Answer]:
        failing = self._failing(call, tasks) if call.steps else ()
        for answer in self.inner.call(call, shared, tasks):
            if answer.client not in failing:
                yield answer
                continue
            fault = list(FAULTS)[len(self.injected) % len(FAULTS)]
            self.injected.append((call.number, answer.client, fault))
            yield FAULTS[fault](answer)

    def _failing(self, call: Call, tasks: Sequence[Task]) -> Sequence[str]:
        if self.failing_clients is not None:
            return self.failing_clients(call, tasks)
        count = max(1, round(self.fraction * len(tasks)))
        stream = rng.numpy_generator("faulty", call.number)
        return [tasks[i].client for i in stream.choice(len(tasks), size=count, replace=False)]


@dataclass
class ScalingEngine(EngineWrapper):
    """Some clients send their update times a factor, such as -10; it is the attack that robust aggregation is for.

    The update of weights is the change from the weights that the client received. Other values, such as class tables,
    are multiplied themselves. BatchNorm statistics stay, because replies with negative variances are rejected.
    """

    attackers: frozenset[str]
    factor: float
    fields: tuple[str, ...] | None = None  # the fields that are attacked; None: all

    def call(self, call: Call, shared: bytes, tasks: Sequence[Task]) -> Iterator[Answer]:
        own = {task.client: task.own for task in tasks}
        for answer in self.inner.call(call, shared, tasks):
            if answer.client not in self.attackers or answer.failure is not None or not call.steps:
                yield answer
                continue
            received: dict[str, Value] = dict(decode(shared))
            received |= dict(decode(own[answer.client])) if own[answer.client] else {}
            reply = dict(decode(answer.frame))
            for name in reply if self.fields is None else [name for name in self.fields if name in reply]:
                reply[name] = self._scaled(reply[name], received.get(name))
            yield replace(answer, frame=encode(reply).data)

    def _scaled(self, value: Value, received: Value | None) -> Value:
        if not isinstance(value, Mapping) or not isinstance(received, Mapping):
            scaled: Value = each_tensor(value, self._times)
            return scaled
        return {
            name: part if name.endswith(STATISTICS) else self._moved(part, received.get(name))
            for name, part in value.items()
        }

    def _moved(self, value: Value, before: Value | None) -> Value:
        if isinstance(value, Tensor) and isinstance(before, Tensor) and value.is_floating_point():
            return before + self.factor * (value - before)
        return value if isinstance(value, Tensor) and not value.is_floating_point() else self._scaled(value, before)

    def _times(self, tensor: Tensor) -> Tensor:
        return tensor * self.factor if tensor.is_floating_point() else tensor


def _raised(answer: Answer) -> Answer:
    return Answer(answer.client, failure=Failure("raised", "RuntimeError: the disk of this client is full"))


def _late(answer: Answer) -> Answer:
    return Answer(answer.client, failure=Failure("timeout", "no answer within 1 seconds"))


def _damaged(answer: Answer) -> Answer:
    middle = len(answer.frame) // 2
    flipped = bytes([answer.frame[middle] ^ 0x10])
    return replace(answer, frame=answer.frame[:middle] + flipped + answer.frame[middle + 1 :])


def _not_finite(answer: Answer) -> Answer:
    """Replace all numbers of a reply by NaN. Add an undeclared tensor to a reply without tensors."""
    replaced: list[Tensor] = []

    def to_nan(tensor: Tensor) -> Tensor:
        replaced.append(tensor)
        return torch.full_like(tensor, torch.nan) if tensor.is_floating_point() else tensor

    changed = each_tensor(dict(decode(answer.frame)), to_nan)
    return replace(answer, frame=encode({**changed, **({} if replaced else {"stray": torch.zeros(1)})}).data)


FAULTS: dict[str, Callable[[Answer], Answer]] = {
    "raised": _raised,
    "timeout": _late,
    "damaged": _damaged,
    "not finite": _not_finite,
}


def each_tensor(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return a copy of a payload with a function applied to every tensor, including rows of class tables."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, ClassTable):
        return ClassTable(value.classes, change(value.values), value.counts)
    if isinstance(value, Mapping):
        return {key: each_tensor(item, change) for key, item in value.items()}
    return value


def steps_of(method: type[Method]) -> dict[str, Messages]:
    """Return the steps of a method and their message schemas."""
    steps = {}
    for name, member in inspect.getmembers(method, callable):
        messages = getattr(member, "messages", None)
        if isinstance(messages, Messages):
            steps[name] = messages
    return steps


StepWrapper = Callable[[str, Client, Payload, Callable[[], Reply | None]], Mapping[str, Value] | None]


def with_wrapped_steps(method: type[Method], wrapper: StepWrapper) -> type[Method]:
    """Return a method whose steps call `wrapper` with the step's name, client, message and body."""

    def wrap(name: str, body: Callable[..., Reply | None]) -> Callable[..., Reply | None]:
        @functools.wraps(body)
        def wrapped(self: Method, client: Client, msg: Payload) -> Reply | None:
            return wrapper(name, client, msg, lambda: body(self, client, msg))

        return wrapped

    bodies = {name: wrap(name, getattr(method, name)) for name in steps_of(method)}
    return type(method.__name__, (method,), bodies)
