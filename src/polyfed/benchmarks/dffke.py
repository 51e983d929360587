"""Memory and time of DFFKE with 10 clients of tiny4 on images of 28x28, with the published widths.

Server and clients run in one process, so that its peak covers all of them. The peak of local training is measured for
comparison. The runs take few steps, because the number of steps costs time and no memory. Synthetic images are
generated on demand; decoders and codes are stored in every round, and their size per round is measured as well.

The CPU time of a round is measured twice. "now" is the current code. "before" decodes synthetic images for every
batch, and convolves enlarged images in the decoder. This round has 1,000 images, fewer steps than published, and an
evaluation.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from polyfed import api
from polyfed.benchmarks.commands import run_command
from polyfed.benchmarks.synthetic import images
from polyfed.config import Config, parse
from polyfed.experiment import Observer
from polyfed.methods.dffke import decoder, synthetic_images
from polyfed.runs.records import RoundRecord

CLIENTS, SAMPLES, SIZE, ROUNDS = 10, 6000, 28, 2
TIMED_SAMPLES, TIMED_STEPS = 1000, 40
METHODS: dict[str, dict[str, Any]] = {
    "dffke": {"name": "dffke", "least_steps": 10, "teachers": 3, "max_local_epochs": 1}
    | dict.fromkeys(("decoder_epochs", "exchange_epochs"), 0),
    "local": {"name": "local"},
}


def measure() -> dict[str, Any]:
    """Return the peak memory of server and clients and the growth of a client's state per round, in MB, and the CPU
    seconds of a round."""
    figures: dict[str, float] = {}
    for name in METHODS:
        figures |= {f"{figure}_{name}": value for figure, value in _in_new_process("memory", name).items()}
    figures["above_local_mb"] = figures["peak_mb_dffke"] - figures["peak_mb_local"]
    figures["state_mb_per_round"] = (figures.pop("state_mb_dffke") - figures.pop("state_mb_local")) / ROUNDS
    seconds = {way: _in_new_process("time", way)["cpu_seconds"] for way in ("before", "now")}
    figures |= {f"round_cpu_seconds_{way}": value for way, value in seconds.items()}
    figures["before_over_now"] = seconds["before"] / seconds["now"]
    settings = {"clients": CLIENTS, "samples": SAMPLES, "image": SIZE, "group": "tiny4", "rounds": ROUNDS}
    settings |= {"timed_samples": TIMED_SAMPLES, "timed_least_steps": TIMED_STEPS}
    return {
        "figures": {name: round(value, 1) for name, value in figures.items()},
        "settings": {**settings, "width": 512, "decoder_channels": 128},
    }


def _in_new_process(what: str, name: str) -> dict[str, float]:
    """Measure in a new process, whose memory is that of the run."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "polyfed.benchmarks.dffke", what, name, folder]
        figures: dict[str, float] = json.loads(run_command(command))
    return figures


def _run(method: Mapping[str, Any], samples: int, folder: Path, observers: Sequence[Observer] = ()) -> dict[str, Any]:
    """Run a method in this process, and return its result."""
    config = parse(
        {
            "method": dict(method),
            "clients": CLIENTS,
            "rounds": ROUNDS,
            "data": {"partition": {"scheme": "iid"}},
            "models": {"group": "tiny4"},
            "evaluate": {"every": ROUNDS},
            "engine": {"name": "serial"},
        }
    )
    data = images("dffke", samples, SIZE, folder / "cache")
    return api.run_config(config, out=folder / "run", data=data, observers=observers)


class _Clock:
    """An observer that notes the CPU time after every round."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def started(self, config: Config, folder: Path, done: int) -> None: ...

    def round_done(self, record: RoundRecord) -> None:
        self.times.append(time.process_time())

    def note(self, sentence: str) -> None: ...


def timed_run(way: str, folder: Path) -> dict[str, float]:
    """Return the CPU seconds of the second round. `way` is "now" or "before"."""
    if way == "before":
        vars(synthetic_images)["CAPACITY"] = -1  # of the image cache
        vars(decoder)["SMALL_LAYER"] = sys.maxsize
    clock = _Clock()
    method = {"name": "dffke", "least_steps": TIMED_STEPS, "max_local_epochs": 3}
    _run(method, TIMED_SAMPLES, folder, observers=[clock])
    return {"cpu_seconds": clock.times[1] - clock.times[0]}


def one_run(name: str, folder: Path) -> dict[str, float]:
    """Return the peak memory of this process after a run, and the size of the largest client state."""
    result = _run(METHODS[name], SAMPLES, folder)
    states = (folder / "run" / "checkpoint" / "clients").rglob("*")
    largest = max(path.stat().st_size for path in states if path.is_file())
    return {"peak_mb": result["memory"]["peak_rss"] / 2**20, "state_mb": largest / 2**20}


if __name__ == "__main__":
    measured = {"memory": one_run, "time": timed_run}[sys.argv[1]]
    sys.stdout.write(json.dumps(measured(sys.argv[2], Path(sys.argv[3]))))
