"""Families of architectures, for tests that take long for every member."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest
from _pytest.mark import ParameterSet
from tests.tiers import always_if


def first_of_each_family(names: Iterable[str]) -> set[str]:
    """Return the first name of each family: `resnet18` for `resnet18`, `resnet34` and so on."""
    first: dict[str, str] = {}
    for name in names:
        first.setdefault(re.split(r"[0-9]", name)[0], name)
    return set(first.values())


def by_family(names: Iterable[str]) -> list[ParameterSet]:
    """Return parameters: the first of each family runs always, the others with --all-methods."""
    names = list(names)
    chosen = first_of_each_family(names)
    return [pytest.param(name, marks=always_if(name in chosen)) for name in names]
