"""Checks of the options of methods and server filters: names, types and bounds. They work without torch."""

from __future__ import annotations

import ast
import operator
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from polyfed.errors import InputError, nearest

COMPARISONS = {
    "ge": (operator.ge, "of at least"),
    "gt": (operator.gt, "above"),
    "le": (operator.le, "at most"),
    "lt": (operator.lt, "below"),
}


class Bound(NamedTuple):
    """One bound of an option: `ge`, `gt`, `le`, `lt` or `degenerate`, and its number."""

    kind: str
    number: float


def check_names(section: str, owner: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise InputError for the first option that the method or filter `owner` does not have."""
    options = list(known)
    for name in given:
        if name not in options:
            raise InputError(f"{section.replace('_', ' ')} {owner} has no option '{name}'; {nearest(name, options)}")


def check_types(section: str, given: Mapping[str, Any], types: Mapping[str, Any]) -> None:
    """Raise InputError for the first option whose value has the wrong type."""
    from pydantic import ConfigDict, ValidationError, create_model

    schema: Any = {name: (types[name], ...) for name in given}
    try:
        create_model(
            "fields", __config__=ConfigDict(strict=True, arbitrary_types_allowed=True, allow_inf_nan=False), **schema
        )(**given)
    except ValidationError as error:
        problem = error.errors()[0]
        message = problem["msg"][0].lower() + problem["msg"][1:]
        raise InputError(
            f"{section}.{problem['loc'][0]} is {problem['input']!r}: {message.replace('input should be', 'expected')}"
        ) from None


def check_bounds(key: str, given: Any, bounds: Iterable[Bound], owner: str, *, allow_degenerate: bool) -> None:
    """Raise InputError if a number, or a number in a list, is out of bounds; `owner` is the class of the method."""
    stated = list(bounds)
    limits = [bound for bound in stated if bound.kind in COMPARISONS]
    for value in given if isinstance(given, list | tuple) else (given,):
        if not isinstance(value, int | float):
            continue
        if not all(COMPARISONS[kind][0](value, number) for kind, number in limits):  # NaN fails every comparison
            allowed = " and ".join(f"{COMPARISONS[kind][1]} {number:g}" for kind, number in limits)
            raise InputError(f"{key} is {value}; expected a number {allowed}")
        if Bound("degenerate", value) in stated and not allow_degenerate:
            raise InputError(
                f"{key} is {value:g}, which switches {owner} off; use another value, or set "
                "method.allow_degenerate: true"
            )


def type_from_text(text: str) -> Any:
    """Return the type that a text such as `float | None` or `Literal['a', 'b']` means; Any if it is not known."""
    try:
        return _type_of(ast.parse(text, mode="eval").body)
    except (KeyError, ValueError, SyntaxError):
        return Any


_TYPES: dict[str, Any] = {"int": int, "float": float, "str": str, "bool": bool}


def _type_of(node: ast.expr) -> Any:
    match node:
        case ast.Name(id=name):
            return _TYPES[name]
        case ast.Constant(value=None):
            return None
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _type_of(left) | _type_of(right)
        case ast.Subscript(value=ast.Name(id="Literal"), slice=values):
            choices = ast.literal_eval(values)
            return Literal[choices]
        case ast.Subscript(value=ast.Name(id="list"), slice=item):
            return list[_type_of(item)]  # type: ignore[misc]
    raise ValueError("an unknown type")
