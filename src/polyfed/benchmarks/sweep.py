"""Sweeps: seconds of ten quickstart runs in one sweep, compared with ten commands one after the other.

A sweep imports torch once per process, and then runs one run after another. Commands and sweep take turns. The ratio
with one round per run shows start-up; the ratio with all rounds includes the training, which a sweep cannot shorten.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from typing import Any

from polyfed.benchmarks.commands import run_command

RUNS, TURNS = 10, 3


def measure() -> dict[str, Any]:
    """Return the seconds of commands and sweeps, and their ratio, with one round per run and with all ten."""
    figures: dict[str, float] = {}
    for rounds in (1, 10):
        turns = [(_commands(rounds), _sweep(rounds)) for _ in range(TURNS)]
        figures[f"commands_seconds_{rounds}_rounds"] = statistics.median(commands for commands, _ in turns)
        figures[f"sweep_seconds_{rounds}_rounds"] = statistics.median(sweep for _, sweep in turns)
        figures[f"ratio_{rounds}_rounds"] = statistics.median(commands / sweep for commands, sweep in turns)
    settings = {"runs": RUNS, "turns": TURNS, "preset": "quickstart"}
    return {"figures": {name: round(value, 2) for name, value in figures.items()}, "settings": settings}


def _commands(rounds: int) -> float:
    """Return the seconds of one `polyfed run` per seed."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        for seed in range(RUNS):
            _polyfed("run", "quickstart", f"rounds={rounds}", f"seed={seed}", "--out", f"{folder}/{seed}")
        return time.perf_counter() - began


def _sweep(rounds: int) -> float:
    """Return the seconds of one `polyfed sweep` over all seeds."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        _polyfed("sweep", "quickstart", f"rounds={rounds}", "--seeds", f"0-{RUNS - 1}", "--out", f"{folder}/sweep")
        return time.perf_counter() - began


def _polyfed(*arguments: str) -> None:
    """Run a command. Raise an error if it fails."""
    run_command([sys.executable, "-m", "polyfed", *arguments, "--quiet"])
