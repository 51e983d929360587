"""`polyfed list`."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from polyfed import plugins
from polyfed.cli.output import print_json, print_message, print_table
from polyfed.errors import InputError, nearest

Row = dict[str, Any]


def list_(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND", help="What to list: methods, models, groups, datasets, partitions, presets or uploads."
        ),
    ],
    json: Annotated[bool, typer.Option("--json", help="Print JSON with all details.")] = False,
) -> None:
    """List methods, models, groups of models, datasets, partitions, presets or uploads.

    Example: polyfed list methods
    """
    if kind not in LISTS:
        raise InputError(f"there is no list of '{kind}'; {nearest(kind, LISTS)}")
    rows = LISTS[kind]()
    if json:
        print_json(rows)
    else:
        PRINTERS[kind](rows)


# the rows of each list; their keys are the keys of the JSON output


def methods() -> list[Row]:
    from polyfed import catalogue

    hidden = {"aliases", "module", "class_name"}
    return [
        {key: value for key, value in dataclasses.asdict(info).items() if key not in hidden}
        for info in catalogue.methods().values()
    ]


def models() -> list[Row]:
    from polyfed.models.zoo import built_in_models

    rows = list(built_in_models().values())
    for name in plugins.entry_points(plugins.MODELS):
        from polyfed.models import describe

        try:
            rows.append(dataclasses.asdict(describe(name)))
        except InputError as error:  # the package may be broken, or its model take inputs of another shape
            print_message(f"{name} is not listed: {error}")
    return rows


def groups() -> list[Row]:
    from polyfed.models.groups import group, group_names

    return [{"name": name, "members": [spec.label for spec in group(name)]} for name in group_names()]


def datasets() -> list[Row]:
    from polyfed.data.catalogue import catalogue

    known = [{**dataclasses.asdict(info), "available": info.available()} for info in catalogue()]
    installed = [
        name for name in plugins.entry_points(plugins.DATASETS) if name not in {row["name"] for row in known}
    ]
    unread = {"shape": (), "classes": None, "train": None, "test": None, "available": True}
    return [*known, *({"name": name, **unread} for name in installed)]


def partitions() -> list[Row]:
    from polyfed.data.partition_settings import SCHEMES

    return [
        {
            "name": name,
            "description": scheme.description,
            "options": [
                {
                    "name": key,
                    "type": option.kind,
                    "default": option.default,
                    "help": option.help,
                    "required": option.required,
                    "choices": list(option.choices),
                }
                for key, option in scheme.options.items()
            ],
        }
        for name, scheme in SCHEMES.items()
    ]


def uploads() -> list[Row]:
    from polyfed import catalogue
    from polyfed.catalogue.upload_kinds import UPLOAD_KINDS

    return [
        {
            "name": kind,
            "description": description,
            "methods": [info.name for info in catalogue.methods().values() if kind in info.upload_kinds],
        }
        for kind, description in UPLOAD_KINDS.items()
    ]


def presets() -> list[Row]:
    import polyfed

    folder = Path(polyfed.__file__).parent / "presets"  # without polyfed.config, which needs pydantic
    paths = sorted(folder.rglob("*.yaml"), key=lambda path: (path.parent != folder, path))
    return [{"name": path.relative_to(folder).with_suffix("").as_posix(), **_preset(path)} for path in paths]


def _preset(path: Path) -> Row:
    """Return title, description, method and dataset of a preset. The first line of its comment is the title."""
    import yaml

    text = path.read_text()
    comment = [line.lstrip("# ") for line in itertools.takewhile(lambda line: line.startswith("#"), text.split("\n"))]
    raw = yaml.safe_load(text)
    return {
        "title": comment[0].rstrip("."),
        "description": " ".join(comment),
        "method": raw["method"]["name"],
        "dataset": raw["data"]["dataset"],
    }


LISTS: Mapping[str, Callable[[], list[Row]]] = {
    "methods": methods,
    "models": models,
    "groups": groups,
    "datasets": datasets,
    "partitions": partitions,
    "presets": presets,
    "uploads": uploads,
}

# tables


def _print_methods(rows: list[Row]) -> None:
    print_table(
        ["method", "", "verdict", "requires", "sends up"],
        [
            [
                row["name"],
                row["title"].partition(": ")[2] or row["title"],
                row["verdict"] or "-",
                ", ".join(need.replace("_", " ") for need in row["requires"]) or "-",
                row["sends_up"],
            ]
            for row in rows
        ],
    )


def _print_models(rows: list[Row]) -> None:
    print_table(
        ["model", "parameters", "extractor", "features", "MFLOPs", "input"],
        [
            [
                row["name"],
                f"{row['params']:,}",
                f"{row['extractor_params']:,}",
                row["feature_dim"],
                f"{row['flops'] / 1e6:,.1f}",
                "x".join(map(str, row["input"])),
            ]
            for row in rows
        ],
        right=range(1, 6),
    )


def _print_groups(rows: list[Row]) -> None:
    print_table(["group", "members"], [[row["name"], ", ".join(row["members"])] for row in rows])


def _print_datasets(rows: list[Row]) -> None:
    from polyfed.data.catalogue import KNOWN

    def known_hub(name: str) -> bool:
        return name in KNOWN and bool(KNOWN[name].hub)

    print_table(
        ["dataset", "shape", "classes", "train", "test", "available now"],
        [
            [
                row["name"],
                "x".join(map(str, row["shape"])),
                "-" if row["classes"] is None else row["classes"],
                "-" if row["train"] is None else f"{row['train']:,}",
                "-" if row["test"] is None else f"{row['test']:,}",
                "yes"
                if row["available"]
                else "downloads from the hub"
                if known_hub(row["name"])
                else "set data.root",
            ]
            for row in rows
        ],
        right=range(1, 5),
    )


def _print_partitions(rows: list[Row]) -> None:
    def options(row: Row) -> str:
        return ", ".join(
            option["name"] if option["default"] is None else f"{option['name']} ({option['default']})"
            for option in row["options"]
        )

    print_table(["scheme", "", "options"], [[row["name"], row["description"], options(row)] for row in rows])


def _print_presets(rows: list[Row]) -> None:
    print_table(
        ["preset", "", "method", "dataset"],
        [[row["name"], row["title"], row["method"], row["dataset"]] for row in rows],
    )


def _print_uploads(rows: list[Row]) -> None:
    print_table(
        ["kind", "clients upload", "methods"],
        [[row["name"], row["description"], ", ".join(row["methods"])] for row in rows],
    )


PRINTERS: Mapping[str, Callable[[list[Row]], None]] = {
    "methods": _print_methods,
    "models": _print_models,
    "groups": _print_groups,
    "datasets": _print_datasets,
    "partitions": _print_partitions,
    "presets": _print_presets,
    "uploads": _print_uploads,
}
COMMANDS = {"list": list_}
