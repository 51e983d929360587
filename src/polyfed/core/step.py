"""A client step: an ordinary method that runs at a client, with the shape of its messages declared beside it."""

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
    """A step bound to its method, as `self.train` gives it."""

    __name__: str

    def __call__(self, client: Client, msg: Payload, /) -> Reply | None: ...


@dataclass(frozen=True)
class Messages:
    """What a step receives and what it answers."""

    down: Schema
    up: Schema


F = TypeVar("F", bound=Callable[..., Reply | None])


def step(*, down: Schema | None = None, up: Schema | None = None) -> Callable[[F], F]:
    """Mark a method as a step that the server may ask a client to run, and declare its messages."""

    def mark(function: F) -> F:
        vars(function)["messages"] = Messages(dict(down or {}), dict(up or {}))
        return function

    return mark


def messages_of(method: object, name: str) -> Messages:
    """The declared messages of a method's step; a name that is not a step is refused."""
    found: Any = getattr(type(method), name, None)
    messages = getattr(found, "messages", None)
    if not isinstance(messages, Messages):
        raise PayloadError(f"{type(method).__name__} has no step called '{name}'")
    return messages


def combined(method: object, names: tuple[str, ...]) -> Messages:
    """The messages of several steps that run in one call: they share what comes down, their replies are joined."""
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
