"""Bounds of the options of methods and server filters.

An option states its bounds in its type, as in `mu: Annotated[float, Ge(0)] = 0.1`, with the bounds of the package
`annotated_types`. The catalogue lists them, and every method and filter is checked against them when it is created.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from annotated_types import Ge, GroupedMetadata, Gt, Le, Lt

from polyfed.option_checks import Bound, check_bounds


@dataclass(frozen=True)
class Degenerate:
    """A value that switches the idea of a method off. The method accepts it only with `allow_degenerate: true`."""

    value: float


def check_options(instance: Any, section: str) -> None:
    """Raise InputError if an option is out of bounds; `section` is the config section of the method or filter."""
    for name, bounds in option_bounds(type(instance)).items():
        check_bounds(
            f"{section}.{name}",
            getattr(instance, name),
            bounds,
            type(instance).__name__,
            allow_degenerate=getattr(instance, "allow_degenerate", False),
        )


def option_bounds(owner: type[Any]) -> Mapping[str, tuple[Bound, ...]]:
    """Return the bounds of every option of a class that has some."""
    kind: Any = owner  # for mypy, which takes no class for hashable
    return _read_bounds(kind)


@lru_cache(maxsize=256)  # reading the hints of a class takes a millisecond, and a check creates many methods
def _read_bounds(owner: Any) -> Mapping[str, tuple[Bound, ...]]:
    hints = get_type_hints(owner, include_extras=True)
    bounds = {field.name: tuple(_bounds_in(hints[field.name])) for field in dataclasses.fields(owner)}
    return {name: stated for name, stated in bounds.items() if stated}


def _bounds_in(hint: Any) -> Iterator[Bound]:
    """Yield the bounds in a type: its own, and those of the members of a union or of the items of a list."""
    if get_origin(hint) is not Annotated:
        for part in get_args(hint):
            yield from _bounds_in(part)
        return
    for mark in hint.__metadata__:
        for bound in mark if isinstance(mark, GroupedMetadata) else (mark,):
            if isinstance(bound, Degenerate):
                yield Bound("degenerate", bound.value)
            elif isinstance(bound, Ge | Gt | Le | Lt):
                kind = type(bound).__name__.lower()
                yield Bound(kind, getattr(bound, kind))
