"""Read `clients.json` of a run folder: the clients' models, and their training samples by class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from polyfed.errors import InputError
from polyfed.report.clean_text import clean
from polyfed.runs.safe_files import read_json, reason


@dataclass(frozen=True)
class ClientData:
    """A client's model and training data: number of samples by class."""

    name: str
    model: str
    parameters: int
    train_counts: Mapping[int, int]


def read_clients(file: Path) -> tuple[list[str], list[ClientData]]:
    """Return the names of the classes, and the clients. Raise InputError if they do not fit together."""
    try:
        raw = read_json(file)
    except FileNotFoundError:
        return [], []  # a run of an earlier version, or of sites that do not share these counts
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read: {reason(error)}") from None
    names = raw["class_names"]
    if not isinstance(names, list):
        raise InputError(f"{file} is damaged: class_names is a {type(names).__name__}, expected a list")
    clients = [
        ClientData(
            clean(client["name"], 40),
            clean(client["model"], 40),
            int(client["numbers"]),
            {int(label): int(count) for label, count in client["train"].items()},
        )
        for client in raw["clients"]
    ]
    for client in clients:
        for label in client.train_counts:
            if not 0 <= label < len(names):
                raise InputError(
                    f"{file} is damaged: client {client.name} has samples of class {label}, "
                    f"but class_names has {len(names)} names"
                )
    return [clean(name, 40) for name in names], clients
