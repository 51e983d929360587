"""What a site demands of every run: privacy of fields, and limits of releases and of evaluations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from polyfed.errors import InputError, nearest
from polyfed.runs.config_text import read_yaml

DELTA = 1e-5  # of an epsilon budget, and of a required epsilon without a delta
LIMITS = ("max_releases", "max_evaluations", "epsilon_budget")


@dataclass(frozen=True)
class FieldDemand:
    """Privacy that a site requires for one field: the largest epsilon of a run, at a delta."""

    epsilon: float
    delta: float = DELTA


@dataclass(frozen=True)
class Demands:
    """All demands of a site. Limits hold for all runs on the same data together; None: no limit."""

    fields: Mapping[str, FieldDemand] = field(default_factory=dict)
    max_releases: int | None = None  # uploads of a field
    max_evaluations: int | None = None  # evaluations of models that the site did not train itself
    epsilon_budget: float | None = None  # of all uploads, at delta 1e-5


def parse_demands(texts: Iterable[str]) -> Demands:
    """Parse values of --require: YAML such as `prototypes: {epsilon: 8}`, or the path of a YAML file."""
    values: dict[str, Any] = {}
    for text in texts:
        values |= _mapping(text)
    return Demands(
        {name: _field_demand(name, value) for name, value in values.items() if name not in LIMITS},
        _count("max_releases", values.get("max_releases")),
        _count("max_evaluations", values.get("max_evaluations")),
        None if values.get("epsilon_budget") is None else _number("epsilon_budget", values["epsilon_budget"]),
    )


def _mapping(text: str) -> dict[str, Any]:
    try:
        is_file = Path(text).is_file()
        content = read_yaml(Path(text).read_text(encoding="utf-8") if is_file else text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise InputError(f"--require cannot be read: {str(error).splitlines()[0]}") from None
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise InputError(
            f"--require is '{text}', which is neither a file nor of the form 'FIELD: {{epsilon: 8}}'; fields and the "
            f"limits {', '.join(LIMITS)} are allowed"
        )
    return content


def _field_demand(name: str, value: Any) -> FieldDemand:
    options = ("epsilon", "delta")
    if not isinstance(value, Mapping) or "epsilon" not in value:
        raise InputError(f"--require has {name}: {value}; give an epsilon, such as '{name}: {{epsilon: 8}}'")
    for key in value:
        if key not in options:
            raise InputError(f"--require has the option '{key}' for {name}; {nearest(str(key), options)}")
    demand = FieldDemand(_number(f"{name}.epsilon", value["epsilon"]), _number(name, value.get("delta", DELTA)))
    if demand.delta >= 1:
        raise InputError(f"--require has delta {demand.delta:g} for {name}; it must be below 1")
    return demand


def _count(name: str, value: Any) -> int | None:
    if value is not None and (type(value) is not int or value < 0):
        raise InputError(f"{name} is {value}; a whole number of at least 0 is allowed")
    return value


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise InputError(f"{name} is {value}; a number above 0 is allowed")
    return float(value)
