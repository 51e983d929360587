"""Every error a user can meet: one sentence that names what was wrong, what was found and what is allowed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PolyfedError(Exception):
    """Base of all errors of polyfed; `exit_code` is what the command line ends with."""

    exit_code = 1


class InputError(PolyfedError):
    """The user's input is wrong; nothing was run and nothing was written."""

    exit_code = 2


class RunError(PolyfedError):
    """A run could not go on; its folder holds the last whole checkpoint."""


class PayloadError(PolyfedError):
    """A message was refused: not what the step declares, damaged, or larger than allowed."""


class StateError(PolyfedError):
    """A saved state or checkpoint is missing, damaged or could not be written."""


def nearest(word: str, options: Iterable[str]) -> str:
    """A hint to append to a sentence about an unknown name: the closest right one, and what there is."""
    known = sorted(options)
    close = difflib.get_close_matches(word.lower(), [k.lower() for k in known], n=1, cutoff=0.5)
    hint = next((f"did you mean '{k}'? " for k in known if close and k.lower() == close[0]), "")
    return f"{hint}Known: {', '.join(known)}" if known else "there is none"
