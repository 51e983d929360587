"""Run 2,000 rounds and watch what grows, or write checkpoints of 10,000 clients that have all taken part.

    python scripts/reliability/endurance.py rounds
    python scripts/reliability/endurance.py clients

`rounds` records every 200 rounds: seconds per round, computing time, memory and open files of the main process and the
workers, the bytes of `checkpoint/` and of `events.jsonl`. `clients` lets every client take part once, and records the seconds of a
resume and of checkpoints after which no, 100 or all states have changed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from scripts.reliability import results
from scripts.reliability.processes import computing_seconds, memory, open_files, workers_of

from polyfed import api
from polyfed.benchmarks.synthetic import images
from polyfed.config import parse
from polyfed.runs.checkpoint import Checkpoint, Checkpoints
from polyfed.runs.records import RoundRecord

EVERY = 200
CLIENTS, CHANGED = 10_000, 100


class Watcher:
    """An observer that measures the processes and the folder of a run every `EVERY` rounds."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._seconds: list[float] = []
        self._computed = 0.0  # seconds of all processes until the last row, or until the end of the first round
        self._folder = Path()

    def started(self, config: Any, folder: Path, done: int) -> None:
        self._folder = folder

    def note(self, sentence: str) -> None: ...

    def round_done(self, record: RoundRecord) -> None:
        if record.round > 1:
            self._seconds.append(record.seconds["total"])
        if record.round > 1 and record.round % EVERY:
            return
        pids = [os.getpid(), *workers_of(os.getpid())]
        computed = sum(computing_seconds(pid) for pid in pids)
        if record.round == 1:  # processes have started
            self._computed = computed
            return
        self.rows.append(
            {
                "round": record.round,
                "median_ms": round(1000 * statistics.median(self._seconds), 1),
                "computing_ms": round(1000 * (computed - self._computed) / len(self._seconds), 1),
                "memory_mb": sum(memory(pid) for pid in pids),
                "open_files": sum(open_files(pid) for pid in pids),
                "checkpoint_kb": folder_size(self._folder / "checkpoint") // 1000,
                "events_kb": (self._folder / "events.jsonl").stat().st_size // 1000,
            }
        )
        self._seconds.clear()
        self._computed = computed
        print(self.rows[-1], flush=True)


def folder_size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def many_rounds(folder: Path, count: int) -> dict[str, Any]:
    """Run many rounds on the pool and return what was measured."""
    settings = {
        "method": {"name": "fedproto"},
        "rounds": count,
        "clients": 6,
        "participation": 0.5,
        "data": {"dataset": "digits", "limit": 240},
        "models": {"group": ["tiny-mlp", "tiny-cnn"]},
        "evaluate": {"every": 100},
        "engine": {"name": "pool", "workers": 2},
    }
    watcher = Watcher()
    api.run(settings, out=folder / "run", observers=[watcher])
    return {"rounds": count, "rows": watcher.rows}


def many_clients(folder: Path, count: int) -> dict[str, Any]:
    """Let all clients take part in one round. Return the seconds of its checkpoint, and of later ones."""
    settings = {
        "method": {"name": "fedproto"},
        "clients": CLIENTS,
        "rounds": 1,
        "data": {"partition": {"scheme": "iid"}},
        "models": {"group": ["tiny-mlp"]},
        "evaluate": {"personal": False, "global": False},
        "engine": {"name": "pool", "workers": 2},
    }
    data = images("population", CLIENTS * 4, 8, folder / "cache")
    result = api.run_config(parse(settings), out=folder / "run", data=data)
    checkpoints = Checkpoints(folder / "run" / "checkpoint")
    start = time.monotonic()
    latest, _, _ = checkpoints.load_latest()
    figures: dict[str, Any] = {"clients": CLIENTS, "load_seconds": round(time.monotonic() - start, 2)}
    assert latest is not None
    versions = latest.ledger.versions
    for changed in (0, *[CHANGED] * count, CLIENTS):
        for name in list(versions)[:changed]:
            frame = checkpoints.store.read(name, versions[name])
            versions[name] += 1
            checkpoints.store.write(name, versions[name], [frame])
        start = time.monotonic()
        checkpoints.save(Checkpoint(latest.round + 1, latest.server, latest.ledger, latest.history))
        figures.setdefault(f"save_seconds_{changed}", []).append(round(time.monotonic() - start, 2))
    return figures | {"peak_memory_mb": result["memory"]["peak_rss"] // 1_000_000}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["rounds", "clients"])
    parser.add_argument("--count", type=int, help="number of rounds, or of checkpoints")
    parser.add_argument("--out", type=Path, default=results.FOLDER)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="endurance-") as folder:
        if chosen.what == "rounds":
            figures = many_rounds(Path(folder), chosen.count or 2000)
        else:
            figures = many_clients(Path(folder), chosen.count or 5)
    results.save(f"endurance-{chosen.what}", figures, chosen.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
