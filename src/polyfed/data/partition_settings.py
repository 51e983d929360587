"""The partition schemes by name, with their options, and the check of what a user wrote for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from polyfed.errors import InputError, nearest


@dataclass(frozen=True)
class Option:
    """One setting of a scheme. `default` None with `required` False means: the scheme works it out."""

    kind: str  # int | float | bool | text | mapping
    default: Any
    help: str
    required: bool = False
    choices: tuple[str, ...] = ()
    least: float | None = None  # smallest allowed number
    above: float | None = None  # numbers must be larger than this


class Scheme(NamedTuple):
    """A way to share out samples: one line of description, and its options."""

    description: str
    options: Mapping[str, Option]


_CLASSES = Option("int", 2, "classes each client holds (m)", least=1)

SCHEMES: Mapping[str, Scheme] = {
    "iid": Scheme(
        "all samples shuffled and cut into nearly equal parts",
        {"stratified": Option("bool", False, "cut every class into nearly equal parts instead")},
    ),
    "dirichlet": Scheme(
        "each class is shared out in proportions drawn from a Dirichlet distribution",
        {
            "alpha": Option("float", 0.1, "concentration: small is skewed, large is even", above=0.0),
            "balance": Option("bool", True, "clients that hold their fair number get no more of later classes"),
            "min_size": Option("int", 10, "draw again until every client has this many samples", least=0),
            "max_tries": Option("int", 1000, "give up after this many draws", least=1),
        },
    ),
    "pathological": Scheme(
        "each client holds a few classes only",
        {
            "classes_per_client": _CLASSES,
            "variant": Option(
                "text",
                "pfllib",
                "how classes are given to clients",
                choices=("pfllib", "first-deterministic", "shards"),
            ),
            "balance": Option("bool", True, "holders of a class get equal parts of it; false draws the amounts"),
            "cover_all": Option("bool", False, "classes nobody got go to the clients with fewest samples"),
        },
    ),
    "pfedhn": Scheme(
        "each client picks the classes with most offers left; the amounts vary a little",
        {
            "classes_per_client": _CLASSES,
            "extra_offer": Option("bool", True, "one offer more per class than needed, as in pFedHN"),
        },
    ),
    "ratio": Scheme(
        "each client's samples come in a fixed ratio, such as 8:1:1, from a few groups of classes",
        {
            "ratio": Option("text", "8:1:1", "parts in words such as '8:1:1' or '6:2:2', or a list of numbers"),
            "reading": Option(
                "text",
                "dominance",
                "the ratio is between groups of classes, or splits local data into train:validation:test",
                choices=("dominance", "split"),
            ),
            "groups": Option("int", 10, "groups into which the classes are cut (dominance)", least=1),
            "classes_per_client": Option(
                "int", None, "classes each client holds (split); a tenth of the classes unless given", least=1
            ),
        },
    ),
    "column": Scheme(
        "each value of a column, such as a hospital or a person, is one client",
        {"column": Option("text", None, "the column's name", required=True)},
    ),
    "file": Scheme(
        "sample numbers from an .npz file with arrays train_0, test_0, train_1, ...",
        {"path": Option("text", None, "the file", required=True)},
    ),
    "flower": Scheme(
        "any partitioner of flwr-datasets",
        {
            "partitioner": Option("text", None, "the class, e.g. DirichletPartitioner", required=True),
            "arguments": Option("mapping", {}, "its arguments; number of clients, label and seed are filled in"),
        },
    ),
}


def settings_of(settings: Mapping[str, object]) -> tuple[str, dict[str, Any]]:
    """The scheme's name and all its options, checked and completed."""
    name = settings.get("scheme")
    if not isinstance(name, str) or name not in SCHEMES:
        hint = nearest(str(name), SCHEMES)
        raise InputError(f"data.partition.scheme is {name!r}, which is not a partition scheme; {hint}")
    options = SCHEMES[name].options
    for key in settings:
        if key != "scheme" and key not in options:
            raise InputError(
                f"data.partition.{key} is not an option of scheme '{name}'; {nearest(str(key), options)}"
            )
    return name, {key: _checked(name, key, option, settings) for key, option in options.items()}


def _checked(scheme: str, key: str, option: Option, settings: Mapping[str, object]) -> Any:
    where = f"data.partition.{key}"
    value = settings.get(key)
    if value is None:
        if option.required:
            raise InputError(f"{where} is missing; scheme '{scheme}' needs it: {option.help}")
        return option.default
    if not _fits(option.kind, key, value):
        raise InputError(f"{where} is {value!r}, but scheme '{scheme}' needs a {_WORDS[option.kind]}: {option.help}")
    if option.choices and value not in option.choices:
        raise InputError(f"{where} is {value!r}; {nearest(str(value), option.choices)}")
    if isinstance(value, int | float) and not isinstance(value, bool):
        if option.least is not None and not value >= option.least:
            raise InputError(f"{where} is {value}, but it must be at least {option.least:g}")
        if option.above is not None and not option.above < value < float("inf"):
            raise InputError(f"{where} is {value}, but it must be a finite number above {option.above:g}")
    return value


_WORDS = {
    "int": "whole number",
    "float": "number",
    "bool": "true or false value",
    "text": "text",
    "mapping": "mapping of names to values",
}


def _fits(kind: str, key: str, value: object) -> bool:
    if kind == "bool":
        return isinstance(value, bool)
    if kind in ("int", "float"):
        return isinstance(value, int if kind == "int" else (int, float)) and not isinstance(value, bool)
    if kind == "mapping":
        return isinstance(value, Mapping)
    return isinstance(value, str) or (key == "ratio" and isinstance(value, list | tuple))
