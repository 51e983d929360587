"""Write `src/polyfed/models/zoo.json`: the sizes of all built-in models. Run it after a change of the models."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from polyfed.models import describe
from polyfed.models.catalogue import ARCHITECTURES
from polyfed.models.zoo import FILE


def measured() -> list[dict[str, Any]]:
    """Return the sizes of all built-in models, as JSON."""
    return json.loads(json.dumps([dataclasses.asdict(describe(name)) for name in ARCHITECTURES]))


if __name__ == "__main__":
    lines = ",\n".join(json.dumps(entry) for entry in measured())
    FILE.write_text(f"[\n{lines}\n]\n")
    print(f"{FILE}: {len(lines.splitlines())} models")
