"""Time of `polyfed list methods`, and until the first round of a run starts."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

REPEATS = 5


def measure() -> dict[str, Any]:
    """Return medians over several runs of the commands, in seconds."""
    listing, first_round = [], []
    for _ in range(REPEATS):
        started = time.perf_counter()
        _command("list", "methods")
        listing.append(time.perf_counter() - started)
        with tempfile.TemporaryDirectory() as folder:
            began = time.time()
            _command("run", "quickstart", "rounds=1", "--out", folder + "/run", "--quiet")
            events = [json.loads(line) for line in (Path(folder) / "run" / "events.jsonl").read_text().splitlines()]
            first_round.append(next(e["time"] for e in events if e["event"] == "started") - began)
    figures = {
        "list_methods_seconds": round(statistics.median(listing), 3),
        "first_round_begins_after_seconds": round(statistics.median(first_round), 3),
    }
    return {"figures": figures, "settings": {"repeats": REPEATS, "preset": "quickstart"}}


def _command(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "polyfed", *arguments], check=True, capture_output=True)
