"""Result files of the reliability scripts: one JSON file each, from which page.py writes docs/reliability.md."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).with_name("figures")


def save(name: str, figures: Mapping[str, Any], folder: Path = FOLDER) -> None:
    """Write the figures of one script, with the command and the versions that gave them."""
    folder.mkdir(parents=True, exist_ok=True)
    script = Path(sys.argv[0]).resolve().relative_to(Path(__file__).resolve().parents[2])
    content = {
        "command": " ".join(["python", str(script), *_essential(sys.argv[1:])]),
        "versions": {
            "python": platform.python_version(),
            "torch": version("torch"),
            "flwr": version("flwr"),
            "linux": platform.release().split("-")[0],
        },
        "cores": os.cpu_count(),
        **figures,
    }
    (folder / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")


def _essential(arguments: list[str]) -> list[str]:
    """Leave out options that do not change the figures: where they are written, and in how many parts."""
    kept = list(arguments)
    for option, values in {"--out": 1, "--seconds": 1, "--resume": 0}.items():
        if option in kept:
            place = kept.index(option)
            del kept[place : place + 1 + values]
    return kept
