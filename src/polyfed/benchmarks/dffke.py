"""Memory of DFFKE with 10 clients of tiny4 on 6,000 images of 28x28, with the published widths.

Server and clients run in one process, so that its peak covers all of them. The peak of local training is measured for
comparison. The runs take few steps, because the number of steps costs time and no memory. Synthetic images are
generated on demand; decoders and codes are stored in every round, and their size per round is measured as well.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from polyfed import api
from polyfed.benchmarks.synthetic import images
from polyfed.config import parse

CLIENTS, SAMPLES, SIZE, ROUNDS = 10, 6000, 28, 2
METHODS: dict[str, dict[str, Any]] = {
    "dffke": {"name": "dffke", "least_steps": 10, "teachers": 3, "max_local_epochs": 1}
    | dict.fromkeys(("decoder_epochs", "exchange_epochs"), 0),
    "local": {"name": "local"},
}


def measure() -> dict[str, Any]:
    """Return the peak of a process with server and clients, and the growth of a client's state per round, in MB."""
    figures: dict[str, float] = {}
    for name in METHODS:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "polyfed.benchmarks.dffke", name, folder]
            result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        figures |= {f"{figure}_{name}": value for figure, value in result.items()}
    figures["above_local_mb"] = figures["peak_mb_dffke"] - figures["peak_mb_local"]
    figures["state_mb_per_round"] = (figures.pop("state_mb_dffke") - figures.pop("state_mb_local")) / ROUNDS
    settings = {"clients": CLIENTS, "samples": SAMPLES, "image": SIZE, "group": "tiny4", "rounds": ROUNDS}
    return {
        "figures": {name: round(value, 1) for name, value in figures.items()},
        "settings": {**settings, "width": 512, "decoder_channels": 128},
    }


def one_run(name: str, folder: Path) -> dict[str, float]:
    """Return the peak memory of this process after a run, and the size of the largest client state."""
    config = parse(
        {
            "method": METHODS[name],
            "clients": CLIENTS,
            "rounds": ROUNDS,
            "data": {"partition": {"scheme": "iid"}},
            "models": {"group": "tiny4"},
            "evaluate": {"every": ROUNDS},
            "engine": {"name": "serial"},
        }
    )
    data = images("dffke", SAMPLES, SIZE, folder / "cache")
    result = api.run_config(config, out=folder / "run", data=data)
    states = (folder / "run" / "checkpoint" / "clients").rglob("*")
    largest = max(path.stat().st_size for path in states if path.is_file())
    return {"peak_mb": result["memory"]["peak_rss"] / 2**20, "state_mb": largest / 2**20}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(one_run(sys.argv[1], Path(sys.argv[2]))))
