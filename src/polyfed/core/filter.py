"""What a server may do with an update before it moves its model, whatever method the update comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeVar

from torch import Tensor

from polyfed.core.options import check_options
from polyfed.core.payload import Weights
from polyfed.errors import InputError

if TYPE_CHECKING:
    from polyfed.core.server import Server


@dataclass(frozen=True)
class Update:
    """The change of the server's model that a round asks for, in double precision.

    Holds the tensors that somebody in the round owns; integer tensors come with their new value. `weight` says how
    much weight stands behind every position: zero where nobody owns it.
    """

    change: Weights
    weight: Mapping[str, Tensor]


@dataclass(frozen=True)
class ServerFilter:
    """Base of all filters. Like a method it is frozen: its fields are its hyperparameters."""

    name: ClassVar[str] = ""

    def __post_init__(self) -> None:
        """Check the bounds of all options. A subclass that checks more calls `super().__post_init__()`."""
        check_options(self, "server_filter")

    def check(self, server: Server) -> None:
        """Refuse a server model that the filter can do nothing with, before round 1."""

    def apply(self, server: Server, update: Update) -> Weights:
        """The change to make instead; what is not changed is passed on as it is."""
        raise NotImplementedError


_REGISTERED: dict[str, type[ServerFilter]] = {}
F = TypeVar("F", bound=ServerFilter)


def register(name: str) -> Callable[[type[F]], type[F]]:
    """Make a filter known by its name to configs."""

    def remember(cls: type[F]) -> type[F]:
        taken = _REGISTERED.get(name)
        if taken is not None and taken.__qualname__ != cls.__qualname__:
            raise InputError(f"the filter name '{name}' is taken by {taken.__module__}.{taken.__qualname__}")
        cls.name = name
        _REGISTERED[name] = cls
        return cls

    return remember


def registered() -> Mapping[str, type[ServerFilter]]:
    return dict(_REGISTERED)
