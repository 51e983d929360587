"""Errors for users. Each message is one sentence: what is wrong, what was found and what is allowed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PolyfedError(Exception):
    """Base class of all errors of polyfed. `exit_code` is the exit code of the command line."""

    exit_code = 1


class InputError(PolyfedError):
    """Wrong input by the user. Nothing was run and nothing was written."""

    exit_code = 2


class RunError(PolyfedError):
    """A run that cannot continue. Its folder holds the last checkpoint."""


class PayloadError(PolyfedError):
    """A message that does not match the step's declaration, is damaged or is too large."""


class StateError(PolyfedError):
    """A saved state or checkpoint that is missing, damaged or could not be written."""


def nearest(word: str, options: Iterable[str]) -> str:
    """Return a hint for a message about an unknown name: the closest valid name, and all valid names."""
    names = sorted(options)
    close = difflib.get_close_matches(word.lower(), [name.lower() for name in names], n=1, cutoff=0.5)
    hint = next((f"did you mean '{name}'? " for name in names if close and name.lower() == close[0]), "")
    return f"{hint}Known: {', '.join(names)}" if names else "there is none"
