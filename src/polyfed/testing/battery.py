"""The battery: all checks, and how to run one on a method."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import Any

from polyfed.core.method import Method
from polyfed.errors import InputError, PolyfedError, nearest
from polyfed.testing.toy_federation import SampleKind, ToyFederation

Check = Callable[[ToyFederation], None]

_CHECKS: dict[str, Check] = {}
_MODULES = ("declaration_checks", "repeatability_checks", "message_checks", "population_checks")


class CheckSkipped(Exception):  # noqa: N818  (not an error: the method declares it, with a reason)
    """The method skips this check. The message is its reason."""


def check(function: Check) -> Check:
    """Add a function to the battery under its own name."""
    _CHECKS[function.__name__] = function
    return function


def checks() -> list[str]:
    """Return the names of all checks."""
    for module in _MODULES:
        importlib.import_module(f"polyfed.testing.{module}")
    return list(_CHECKS)


def run_check(
    name: str,
    method: type[Method],
    fields: Mapping[str, Any] | None = None,
    samples: SampleKind = "pictures",
    device: str = "cpu",
) -> list[str]:
    """Run one check on a method. Raise AssertionError if it fails, or CheckSkipped if the method skips it.

    `samples` are the samples of the toy federation: "pictures", "numbers" (a table) or "tokens" (text). `device` is
    its `engine.device`. Return the state hashes of all runs of the check.
    """
    if name not in checks():
        raise InputError(f"there is no check called '{name}'; {nearest(name, _CHECKS)}")
    if not (isinstance(method, type) and issubclass(method, Method) and dataclasses.is_dataclass(method)):
        raise InputError(f"{method!r} is not a method: a dataclass that derives from polyfed.core.Method is needed")
    if not method.name:
        raise InputError(f'{method.__qualname__} has no name; put @register("name") above its class')
    if name in method.skipped_checks:
        raise CheckSkipped(method.skipped_checks[name])
    with ToyFederation(method, dict(fields or {}), samples, device) as toy:
        try:
            _CHECKS[name](toy)
        except AssertionError:
            raise
        except PolyfedError as error:
            raise AssertionError(f"{method.name} fails '{name}': {error}") from error
        except Exception as error:
            raise AssertionError(f"{method.name} fails '{name}' by {type(error).__name__}: {error}") from error
    return toy.hashes
