"""Client steps: methods that run at a client, with declared message schemas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from polyfed.core.payload import Payload, Value
from polyfed.core.schema import Schema
from polyfed.errors import PayloadError

if TYPE_CHECKING:
    from polyfed.core.client import Client

Reply = Mapping[str, Value]


class Step(Protocol):
    """A step bound to its method, such as `self.train`."""

    __name__: str

    def __call__(self, client: Client, msg: Payload, /) -> Reply | None: ...


@dataclass(frozen=True)
class Messages:
    """Schemas of the message that a step receives and of its reply."""

    down: Schema
    up: Schema


F = TypeVar("F", bound=Callable[..., Reply | None])


def step(*, down: Schema | None = None, up: Schema | None = None) -> Callable[[F], F]:
    """Declare a client step and the schemas of its messages."""

    def decorate(function: F) -> F:
        vars(function)["messages"] = Messages(dict(down or {}), dict(up or {}))
        return function

    return decorate


def method_steps(method: object) -> Mapping[str, Messages]:
    """Return the messages of a method's steps by name, in the order of their definition."""
    steps: dict[str, Messages] = {}
    for cls in reversed(type(method).__mro__):
        for name, value in vars(cls).items():
            messages = getattr(value, "messages", None)
            if isinstance(messages, Messages):
                steps[name] = messages
    return steps


def messages_of(method: object, name: str) -> Messages:
    """Return the schemas of a step. Raise PayloadError if the method has no such step."""
    function: Any = getattr(type(method), name, None)
    messages = getattr(function, "messages", None)
    if not isinstance(messages, Messages):
        raise PayloadError(f"{type(method).__name__} has no step called '{name}'")
    return messages


def uploads_of(method: object) -> list[str]:
    """Return the names of all fields that the steps of a method upload, in the order of their definition."""
    names: dict[str, None] = {}
    for cls in reversed(type(method).__mro__):
        for name in vars(cls):
            messages = getattr(getattr(type(method), name), "messages", None)
            names |= dict.fromkeys(messages.up if isinstance(messages, Messages) else ())
    return list(names)


def combined(method: object, names: tuple[str, ...]) -> Messages:
    """Return the schemas of several steps in one call. They receive the same message; their replies are joined."""
    down: dict[str, Any] = {}
    up: dict[str, Any] = {}
    for name in names:
        messages = messages_of(method, name)
        down |= messages.down
        for field, kind in messages.up.items():
            if field in up:
                raise PayloadError(f"two steps of one call both send '{field}': {', '.join(names)}")
            up[field] = kind
    return Messages(down, up)
