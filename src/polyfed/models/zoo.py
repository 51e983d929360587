"""The sizes of the built-in models, saved in a file, so that lists of models are fast and need no torch.

`python scripts/write_zoo.py` writes the file again when models are added or changed.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("zoo.json")


@cache
def built_in_models() -> dict[str, dict[str, Any]]:
    """Return the fields of the `ModelInfo` of every built-in model, by name."""
    return {entry["name"]: entry for entry in json.loads(FILE.read_text())}
