"""Cost of a report over 100 runs of 200 rounds, with synthetic run folders."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from polyfed.core import rng

METHODS, SEEDS, ROUNDS, CLIENTS, CLASSES = 10, 10, 200, 20, 10
# in a separate process, to measure its memory
_CODE = (
    "import resource, sys\nfrom polyfed.cli.app import main\n"
    "code = main(['report', sys.argv[1], '-o', sys.argv[2]])\n"
    "used = resource.getrusage(resource.RUSAGE_SELF)\n"
    "print(used.ru_utime + used.ru_stime, used.ru_maxrss, file=sys.stderr)\nsys.exit(code)"
)


def measure() -> dict[str, Any]:
    """Return wall-clock and processor seconds of `polyfed report`, its peak memory, and the size of the page."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for method in range(METHODS):
            for seed in range(SEEDS):
                make_run(folder / "runs" / f"method{method}-seed{seed}", f"method{method}", seed)
        page = folder / "report.html"
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", _CODE, str(folder / "runs"), str(page)], check=True, capture_output=True, text=True
        )
        seconds = time.perf_counter() - started
        processor, kib = float(done.stderr.split()[-2]), int(done.stderr.split()[-1])
        kib = kib // 1024 if sys.platform == "darwin" else kib
        size = page.stat().st_size
    return {
        "figures": {
            "seconds": round(seconds, 2),
            "processor_seconds": round(processor, 2),
            "peak_gb": round(kib * 1024 / 1e9, 3),
            "page_mb": round(size / 1e6, 2),
        },
        "settings": {"runs": METHODS * SEEDS, "rounds": ROUNDS, "clients": CLIENTS},
    }


def make_run(folder: Path, method: str, seed: int, rounds: int = ROUNDS) -> None:
    """Write a synthetic run folder with curves that rise to a noisy plateau."""
    folder.mkdir(parents=True)
    generator = rng.numpy_generator(seed, "benchmark", method)
    config = {
        "name": folder.name,
        "method": {"name": method, "guidance": 1.0},
        "data": {"dataset": "digits", "partition": {"scheme": "dirichlet", "alpha": 0.1}},
        "clients": CLIENTS,
        "rounds": rounds,
        "seed": seed,
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    clients = [
        {
            "name": str(client),
            "model": f"model{client % 4}",
            "numbers": 1000 * (1 + client % 4),
            "train": {
                str(label): int(count) for label, count in enumerate(generator.integers(0, 60, CLASSES)) if count
            },
            "test": {},
        }
        for client in range(CLIENTS)
    ]
    names = [str(label) for label in range(CLASSES)]
    (folder / "clients.json").write_text(json.dumps({"class_names": names, "clients": clients}))
    level = 0.9 * (1 - np.exp(-np.arange(1, rounds + 1) / 30)) * generator.uniform(0.7, 1)
    with (folder / "events.jsonl").open("w") as file:
        file.write(json.dumps({"event": "started", "rounds": rounds, "clients": CLIENTS}) + "\n")
        for number in range(1, rounds + 1):
            for line in _round(number, float(level[number - 1]), generator):
                file.write(json.dumps(line) + "\n")
    (folder / "result.json").write_text(json.dumps(_result(config, level.tolist())))


def _round(number: int, level: float, generator: np.random.Generator) -> list[dict[str, Any]]:
    shapes = {"prototypes": "4 rows of 64", "counts": "4"}
    left = [
        {
            "time": 1.7e9 + number,
            "round": number,
            "client": str(client),
            "step": "train",
            "fields": {"prototypes": 1024, "counts": 16},
            "shapes": shapes,
            "event": "left",
        }
        for client in range(CLIENTS)
    ]
    values = np.clip(level + 0.1 * generator.standard_normal(CLIENTS), 0, 1).tolist()
    done = {
        "event": "round",
        "round": number,
        "accuracy": {
            "personal": {"value": level, "by_client": values},
            "global": {"value": level / 2, "by_client": values},
        },
        "loss": 2 - level,
        "up": {"prototypes": 1024 * CLIENTS, "counts": 16 * CLIENTS},
        "down": {"prototypes": 4096 * CLIENTS},
        "overhead": {"up": 100, "down": 100},
        "seconds": {"total": 2.0, "train": 1.0, "evaluate": 0.5, "server": 0.1, "clients": 1.5},
        "failures": [],
    }
    return [*left, done]


def _result(config: dict[str, Any], level: list[float]) -> dict[str, Any]:
    measured = {"final": level[-1], "best": max(level), "best_round": 1, "by_client": [], "by_round": level}
    return {
        "name": config["name"],
        "method": config["method"]["name"],
        "seed": config["seed"],
        "rounds": len(level),
        "clients": CLIENTS,
        "accuracy": {"personal": measured, "global": measured},
        "loss": {"by_round": [2 - value for value in level]},
        "bytes": {"up": 1040 * CLIENTS * len(level), "down": 4096 * CLIENTS * len(level)},
        "seconds": {"total": 2.0 * len(level), "by_round": [2.0] * len(level)},
        "failures": [],
    }
