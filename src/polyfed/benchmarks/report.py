"""Cost of reports over 100 runs of 200 rounds, and over six runs with features, with synthetic run folders."""

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
WITH_FEATURES, SAMPLES, WIDTH = 6, 2000, 64  # methods with one run each, and the features of each run
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
        runs = Path(name) / "runs"
        for method in range(METHODS):
            for seed in range(SEEDS):
                make_run(runs / f"method{method}-seed{seed}", f"method{method}", seed)
        many = _write_report(runs)
    with tempfile.TemporaryDirectory() as name:
        runs = Path(name) / "runs"
        for method in range(WITH_FEATURES):
            make_run(runs / f"method{method}", f"method{method}", 0, rounds=10)
            _save_features(runs / f"method{method}", method)
        features = _write_report(runs)
    return {
        "figures": {
            "seconds": round(many["seconds"], 2),
            "processor_seconds": round(many["processor"], 2),
            "peak_gb": round(many["peak"] / 1e9, 3),
            "page_mb": round(many["size"] / 1e6, 2),
            "features_seconds": round(features["seconds"], 2),
            "features_processor_seconds": round(features["processor"], 2),
        },
        "settings": {
            "runs": METHODS * SEEDS,
            "rounds": ROUNDS,
            "clients": CLIENTS,
            "runs_with_features": WITH_FEATURES,
            "features": SAMPLES,
        },
    }


def _write_report(runs: Path) -> dict[str, float]:
    page = runs.parent / "report.html"
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", _CODE, str(runs), str(page)], check=True, capture_output=True, text=True
    )
    seconds = time.perf_counter() - started
    processor, kib = float(done.stderr.split()[-2]), int(done.stderr.split()[-1])
    kib = kib // 1024 if sys.platform == "darwin" else kib
    return {"seconds": seconds, "processor": processor, "peak": 1024.0 * kib, "size": float(page.stat().st_size)}


def _save_features(folder: Path, seed: int) -> None:
    """Write the features of test samples: a cloud per class, as `evaluate.features` records them."""
    from safetensors.numpy import save_file

    generator = rng.numpy_generator(seed, "benchmark", "features")
    index = np.arange(SAMPLES)
    centres = 4 * generator.standard_normal((CLASSES, WIDTH))
    vectors = centres[index % CLASSES] + generator.standard_normal((SAMPLES, WIDTH))
    (folder / "artifacts").mkdir()
    tensors: dict[str, np.ndarray[Any, Any]] = {
        "vectors": vectors.astype(np.float32),
        "classes": index % CLASSES,
        "clients": index % CLIENTS,
    }
    save_file(tensors, folder / "artifacts" / "features-000010.safetensors")


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
