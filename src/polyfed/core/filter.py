"""Server filters: they modify an update before it is applied to the server model, with any method."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
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
    """Change of the server model after a round, in double precision.

    It holds the tensors that at least one client of the round has. Integer tensors hold their new value. `weight` is
    the total client weight of every position; it is zero where no client has the position.
    """

    change: Weights
    weight: Mapping[str, Tensor]


@dataclass(frozen=True)
class ServerFilter:
    """Base of all filters. A filter is a frozen dataclass whose fields are its hyperparameters."""

    name: ClassVar[str] = ""

    def __post_init__(self) -> None:
        """Check the bounds of all options. A subclass that checks more calls `super().__post_init__()`."""
        check_options(self, "server_filter")

    def check(self, server: Server) -> None:
        """Raise InputError before the first round if the filter does not work with the server model."""

    def apply(self, server: Server, update: Update) -> Weights:
        """Return the change to apply. Tensors that the filter does not modify are returned unchanged."""
        raise NotImplementedError


_REGISTERED: dict[str, type[ServerFilter]] = {}
F = TypeVar("F", bound=ServerFilter)


def register(name: str) -> Callable[[type[F]], type[F]]:
    """Register a filter under a name, for configs."""

    def decorate(cls: type[F]) -> type[F]:
        other = _REGISTERED.get(name)
        if other is not None and other.__qualname__ != cls.__qualname__:
            raise InputError(f"the filter name '{name}' is taken by {other.__module__}.{other.__qualname__}")
        cls.name = name
        _REGISTERED[name] = cls
        return cls

    return decorate


def registered() -> Mapping[str, type[ServerFilter]]:
    """Return the filters that are registered in this process, by name."""
    return dict(_REGISTERED)


def forget(modules: Collection[str]) -> None:
    """Remove the filters that modules registered, before the modules are imported again."""
    for name in [name for name, value in _REGISTERED.items() if value.__module__ in modules]:
        del _REGISTERED[name]
