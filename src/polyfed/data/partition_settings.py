"""The partition schemes by name with their options, and the validation of `data.partition`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from polyfed.errors import InputError, nearest


@dataclass(frozen=True)
class Option:
    """One option of a scheme. If it is not required and its default is None, the scheme computes its value."""

    kind: str  # int | float | bool | text | mapping
    default: Any
    help: str
    required: bool = False
    choices: tuple[str, ...] = ()
    least: float | None = None  # smallest allowed number
    above: float | None = None  # numbers must be larger than this


class Scheme(NamedTuple):
    """A partition scheme: a one-line description, and its options."""

    description: str
    options: Mapping[str, Option]


_CLASSES = Option("int", 2, "number of classes per client", least=1)

SCHEMES: Mapping[str, Scheme] = {
    "iid": Scheme(
        "shuffle all samples and cut them into nearly equal parts",
        {"stratified": Option("bool", False, "also give every client a nearly equal part of every class")},
    ),
    "dirichlet": Scheme(
        "divide each class between clients in proportions from a Dirichlet distribution",
        {
            "alpha": Option("float", 0.1, "concentration; small values are skewed, large values even", above=0.0),
            "balance": Option("bool", True, "clients that reach the mean size get no samples of later classes"),
            "min_size": Option("int", 10, "sample again until every client has this many samples", least=0),
            "max_tries": Option("int", 1000, "raise an error after this many attempts", least=1),
        },
    ),
    "pathological": Scheme(
        "give each client samples of a few classes only",
        {
            "classes_per_client": _CLASSES,
            "variant": Option(
                "text",
                "pfllib",
                "how classes are assigned to clients",
                choices=("pfllib", "first-deterministic", "shards"),
            ),
            "balance": Option("bool", True, "clients of a class get equal parts of it; false: random sizes"),
            "cover_all": Option("bool", False, "assign classes without a client to the clients with fewest samples"),
        },
    ),
    "pfedhn": Scheme(
        "give each client a few classes in slightly uneven parts, as in pFedHN",
        {
            "classes_per_client": _CLASSES,
            "extra_offer": Option(
                "bool", True, "cut every class into one part (offer) more than needed, as in pFedHN"
            ),
        },
    ),
    "ratio": Scheme(
        "give each client samples of a few groups of classes in a fixed ratio such as 8:1:1",
        {
            "ratio": Option("text", "8:1:1", "the ratio, as text such as '8:1:1' or as a list of numbers"),
            "reading": Option(
                "text",
                "dominance",
                "dominance: ratio between groups of classes; split: train:validation:test of each client",
                choices=("dominance", "split"),
            ),
            "groups": Option("int", 10, "number of groups of classes (dominance)", least=1),
            "classes_per_client": Option(
                "int", None, "classes per client (split); default: a tenth of the classes", least=1
            ),
        },
    ),
    "column": Scheme(
        "make one client of each value of a column, such as a hospital or a person",
        {"column": Option("text", None, "name of the column", required=True)},
    ),
    "given": Scheme("every client keeps the data that it brought to polyfed.run(data=[...])", {}),
    "file": Scheme(
        "read sample indices from an .npz file with arrays train_0, test_0, train_1, ...",
        {"path": Option("text", None, "path of the .npz file", required=True)},
    ),
    "flower": Scheme(
        "use a partitioner of flwr-datasets",
        {
            "partitioner": Option("text", None, "name of the class, such as DirichletPartitioner", required=True),
            "arguments": Option(
                "mapping", {}, "arguments of the class; polyfed adds number of clients, label column and seed"
            ),
        },
    ),
}


def settings_of(settings: Mapping[str, object]) -> tuple[str, dict[str, Any]]:
    """Return the name of the scheme and the values of all its options. Raise `InputError` for wrong ones."""
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
    return name, {key: _validated_value(name, key, option, settings) for key, option in options.items()}


def _validated_value(scheme: str, key: str, option: Option, settings: Mapping[str, object]) -> Any:
    where = f"data.partition.{key}"
    value = settings.get(key)
    if value is None:
        if option.required:
            raise InputError(f"{where} is missing; scheme '{scheme}' needs it: {option.help}")
        return option.default
    if not _has_type(option.kind, key, value):
        raise InputError(
            f"{where} is {value!r}, but scheme '{scheme}' needs a {_TYPE_NAMES[option.kind]}: {option.help}"
        )
    if option.choices and value not in option.choices:
        raise InputError(f"{where} is {value!r}; {nearest(str(value), option.choices)}")
    if isinstance(value, int | float) and not isinstance(value, bool):
        if option.least is not None and not value >= option.least:
            raise InputError(f"{where} is {value}, but it must be at least {option.least:g}")
        if option.above is not None and not option.above < value < float("inf"):
            raise InputError(f"{where} is {value}, but it must be a finite number above {option.above:g}")
    return value


_TYPE_NAMES = {
    "int": "whole number",
    "float": "number",
    "bool": "true or false value",
    "text": "text",
    "mapping": "mapping of names to values",
}


def _has_type(kind: str, key: str, value: object) -> bool:
    if kind == "bool":
        return isinstance(value, bool)
    if kind in ("int", "float"):
        return isinstance(value, int if kind == "int" else (int, float)) and not isinstance(value, bool)
    if kind == "mapping":
        return isinstance(value, Mapping)
    return isinstance(value, str) or (key == "ratio" and isinstance(value, list | tuple))
