"""Start-up: CPU seconds of commands until they answer, and seconds until the first round of a run.

CPU seconds depend on the machine, and on what else it does. `import_torch` is the time of `import torch` alone, the
least that a run can take. Python's bytecode is cached before the first measurement, as after a first use.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from polyfed.benchmarks.commands import run_command

REPEATS = 5
COMMANDS = {
    "help": (["--help"], 0),
    "list_methods": (["list", "methods"], 0),
    "list_models": (["list", "models"], 0),
    "refusal_of_a_method": (["run", "quickstart", "method=fedprotto"], 2),
    "refusal_of_a_key": (["run", "quickstart", "train.learning_rte=1"], 2),
    "check": (["check", "quickstart"], 0),
}


def measure() -> dict[str, Any]:
    """Return medians over several runs of each command, in seconds."""
    cpu: dict[str, list[float]] = {name: [] for name in ("import_torch", *COMMANDS, "run_of_one_round")}
    import_seconds, first_round = [], []
    with tempfile.TemporaryDirectory() as bytecode:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for repeat in range(-1, REPEATS):
            began = time.time()
            seconds = {"import_torch": _cpu_seconds([sys.executable, "-c", "import torch"], 0, environment)}
            imported = time.time() - began
            for name, (arguments, code) in COMMANDS.items():
                seconds[name] = _cpu_seconds([sys.executable, "-m", "polyfed", *arguments], code, environment)
            seconds["run_of_one_round"], started = _run_of_one_round(environment)
            if repeat >= 0:  # the first turn fills the caches
                import_seconds.append(imported)
                first_round.append(started)
                for name, value in seconds.items():
                    cpu[name].append(value)
    medians = {name: statistics.median(seconds) for name, seconds in cpu.items()}
    figures = {
        **{f"{name}_cpu_seconds": round(seconds, 3) for name, seconds in medians.items()},
        "check_over_import_torch": round(medians["check"] / medians["import_torch"], 2),
        "first_round_begins_after_seconds": round(statistics.median(first_round), 3),
        "first_round_over_import_torch": round(
            statistics.median(run / alone for run, alone in zip(first_round, import_seconds, strict=True)), 2
        ),
    }
    return {"figures": figures, "settings": {"repeats": REPEATS, "preset": "quickstart"}}


def _run_of_one_round(environment: dict[str, str]) -> tuple[float, float]:
    """Run one round. Return the CPU seconds of the command, and the seconds until the round began."""
    with tempfile.TemporaryDirectory() as folder:
        run = [sys.executable, "-m", "polyfed", "run", "quickstart", "rounds=1", "--out", f"{folder}/run", "--quiet"]
        began = time.time()
        seconds = _cpu_seconds(run, 0, environment)
        events = [json.loads(line) for line in (Path(folder) / "run" / "events.jsonl").read_text().splitlines()]
        return seconds, next(e["time"] for e in events if e["event"] == "started") - began


def _cpu_seconds(command: list[str], code: int, environment: dict[str, str]) -> float:
    """Run a command and return the CPU seconds of it and its children. Raise an error for another exit code."""
    before = os.times()
    run_command(command, environment, code)
    after = os.times()
    return (after.children_user - before.children_user) + (after.children_system - before.children_system)
