"""Errors for users. Each message is one sentence: what is wrong, what was found and what is allowed."""

from __future__ import annotations

import difflib
import importlib.util
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


def require(*packages: str, extra: str, sentence: str) -> None:
    """Raise `InputError` if packages of an extra are not installed.

    `sentence` is the start of the message, such as "ONNX files need".
    """
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        raise InputError(f"{sentence} {' and '.join(missing)}; install it with: pip install 'polyfed[{extra}]'")


MANY = 15  # if more names are valid and one is close, only that one is shown


def closest(word: str, options: Iterable[str]) -> str | None:
    """Return the valid name that a misspelt word is meant to be, or None if no name is similar enough."""
    names = {name.lower(): name for name in sorted(options, reverse=True)}
    wanted = word.lower()
    match = difflib.get_close_matches(wanted, names, n=1, cutoff=0.75)
    if not match:  # in short names, one letter may be wrong, missing or too many
        match = [name for name in names if len(wanted) > 1 and _one_edit(wanted, name)][:1]
    if not match:  # the beginning of one name
        starts = [name for name in names if len(wanted) > 3 and name.startswith(wanted)]
        match = starts if len(starts) == 1 else []
    return names[match[0]] if match else None


def nearest(word: str, options: Iterable[str]) -> str:
    """Return a hint for a message about an unknown name: the closest valid name, and all names if they are few."""
    names = sorted(options)
    if not names:
        return "there is none"
    match = closest(word, names)
    if match is None:
        return f"known: {', '.join(names)}"
    hint = f"did you mean '{match}'?"
    return hint if len(names) > MANY else f"{hint} Known: {', '.join(names)}"


def _one_edit(a: str, b: str) -> bool:
    """Return whether inserting, deleting, replacing or swapping letters once makes the two words equal."""
    if abs(len(a) - len(b)) > 1:
        return False
    start = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    swapped = a[start : start + 2] == b[start : start + 2][::-1] and a[start + 2 :] == b[start + 2 :]
    return swapped or a[start + 1 :] == b[start + 1 :] or a[start:] == b[start + 1 :] or a[start + 1 :] == b[start:]
