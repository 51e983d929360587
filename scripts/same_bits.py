"""Check that two checkouts of polyfed compute the same results, bit for bit.

    python scripts/same_bits.py OLD_CHECKOUT [NEW_CHECKOUT] [--only NAME ...] [--flower]

Both checkouts run the same configs with the same interpreter, and the script compares their `state_hash`: the quickstart
with five methods, a short run of every method, sub-models with and without InCo, and with `--flower` a rehearsal between
a coordinator and two sites. It exits with 1 if a hash differs or a run fails in one checkout only. Use it for changes
that must not move results; processors round differently, so a recorded hash would be worth nothing on another machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
QUIET = {
    "OMP_NUM_THREADS": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
SMALL = {  # options that only say how much work is done
    "ccvr": {"virtual": 30, "epochs": 2},
    "dffke": {"width": 32, "decoder_channels": 16, "docking_steps": 5, "least_steps": 5, "max_local_epochs": 3},
    "fedgen": {"generator_steps": 5, "hidden": 32},
    "fedktl-lite": {"server_epochs": 3, "latent_width": 16},
    "fedtgp": {"server_epochs": 3},
    "fedvtc": {"samples_per_class": 6, "finetune_epochs": 1},
}
MODELS = {
    "scalefl": ["tiny-resnet-wide@0.5:2", "tiny-resnet-wide:2-4-6"],
    "inclusivefl": ["tiny-resnet10", "tiny-resnet18"],
    "same_architecture": ["tiny-resnet"],
    "sub_models": ["tiny-resnet@0.5", "tiny-resnet"],
}
UNTRIED = {"fedktl"}  # needs a generator that the user brings


def cases(methods: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the config of every run that is compared."""
    for name in ("local", "lg-fedavg", "feddistill", "fedproto"):
        yield f"quickstart {name}", {"preset": "quickstart", "method": {"name": name}}
    common = {"preset": "quickstart", "method": {"name": "fedavg"}, "models": {"group": ["tiny-cnn"]}}
    yield "quickstart fedavg", common
    base: dict[str, Any] = {"preset": "quickstart", "clients": 5, "rounds": 2, "participation": 0.8}
    for method in methods:
        name = method["name"]
        if name not in UNTRIED:
            kind = next((need for need in ("same_architecture", "sub_models") if need in method["requires"]), "")
            group = MODELS.get(name) or MODELS.get(kind) or "tiny4"
            models: dict[str, Any] = {"group": group}
            if "same_features" in method["requires"]:
                models["feature_map"] = [16, 2, 2]
            config = {**base, "method": {"name": name, **SMALL.get(name, {})}, "models": models}
            yield name, {**config, "engine": {"name": "serial"}}
    stages = {**base, "method": {"name": "fedavg"}, "models": {"group": "tiny-resnets"}, "splitting": "stage"}
    yield "fedavg by stages", stages
    yield "fedavg by stages with inco", {**stages, "server_filter": "inco"}
    private = {"prototypes": {"clip": 1.0, "epsilon": 8.0, "delta": 1e-5}}
    yield "fedproto with privacy", {**base, "method": {"name": "fedproto"}, "privacy": private}


def environment(checkout: Path) -> dict[str, str]:
    """Return an environment in which `import polyfed` takes the code of a checkout."""
    return {**os.environ, **QUIET, "PYTHONPATH": f"{checkout / 'src'}{os.pathsep}{checkout}"}


def polyfed(checkout: Path, *arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run one command with the code of a checkout."""
    command = [sys.executable, "-m", "polyfed", *arguments]
    return subprocess.run(command, env=environment(checkout), cwd=folder, capture_output=True, text=True, check=False)


def state_hash(checkout: Path, config: dict[str, Any]) -> str:
    """Run a config and return its hash, or the last line of the error message."""
    config = dict(config)
    preset = config.pop("preset")
    overrides = [f"{key}={json.dumps(value)}" for key, value in config.items()]
    with tempfile.TemporaryDirectory() as folder:
        done = polyfed(checkout, "run", preset, *overrides, "--json", "--out", f"{folder}/run", folder=Path(folder))
    return _hash(done)


def rehearsal(checkout: Path) -> str:
    """Run a coordinator and two sites on this machine, over Flower, and return the hash of the run."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for words in ("keys new authority", "keys new site north", "keys new site south"):
            polyfed(checkout, *words.split(), folder=folder)
        for site in ("north", "south"):
            polyfed(checkout, "sites", "admit", site, f"{site}.pub", folder=folder)
        sizes = ["clients=2", "rounds=2", "method=fedproto", "names=[north, south]"]
        port = str(20_000 + os.getpid() % 20_000)
        serve = [sys.executable, "-m", "polyfed", "serve", "quickstart", *sizes, "--port", port, "--json"]
        started: list[subprocess.Popen[str]] = []
        try:
            coordinator = _start(serve, checkout, folder)
            started.append(coordinator)
            time.sleep(5)
            for site in ("north", "south"):
                join = [sys.executable, "-m", "polyfed", "join", "--rehearsal", "--server", f"localhost:{port}"]
                join += ["--key", f"{site}.key", "--ca", "coordinator/ca.crt", "--state", f"state/{site}"]
                started.append(_start(join, checkout, folder))
            out, error = coordinator.communicate(timeout=300)
            return _hash(subprocess.CompletedProcess(serve, coordinator.returncode, out, error))
        finally:
            for process in reversed(started):
                process.terminate()
                process.wait(60)


def _start(command: list[str], checkout: Path, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        env=environment(checkout),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _hash(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode != 0:
        return "failed: " + (done.stderr.strip().splitlines() or ["without a message"])[-1]
    return str(json.loads(done.stdout)["state_hash"])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("old", type=Path, help="a checkout whose results are right")
    parser.add_argument("new", type=Path, nargs="?", default=HERE, help="the checkout to compare; default: this one")
    parser.add_argument("--only", nargs="+", default=[], help="compare only these cases")
    parser.add_argument("--flower", action="store_true", help="also compare a rehearsal over Flower")
    chosen = parser.parse_args()
    old, new = chosen.old.resolve(), chosen.new.resolve()
    for checkout in (old, new):  # otherwise the installed polyfed would run in its place
        if not (checkout / "src" / "polyfed" / "__init__.py").is_file():
            print(f"{checkout} is not a checkout of polyfed: it has no src/polyfed", file=sys.stderr)
            return 2
    listed = polyfed(old, "list", "methods", "--json")
    compared = dict(cases(json.loads(listed.stdout)))
    unknown = sorted(set(chosen.only) - set(compared))
    if unknown:
        print(f"unknown case '{unknown[0]}'; cases: {', '.join(compared)}", file=sys.stderr)
        return 2
    different = 0
    for name, config in compared.items():
        if chosen.only and name not in chosen.only:
            continue
        different += _report(name, state_hash(old, config), state_hash(new, config))
    if chosen.flower:
        different += _report("rehearsal over Flower", rehearsal(old), rehearsal(new))
    print(f"{different} different" if different else "all equal")
    return 1 if different else 0


def _report(name: str, before: str, after: str) -> int:
    equal = before == after and not before.startswith("failed")
    print(
        f"{'equal    ' if equal else 'DIFFERENT'}  {name}  {before[:60]}" + ("" if equal else f"  {after[:160]}"),
        flush=True,
    )
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
