"""Cost of a large population: rounds with 20 of 10,000 clients, compared with 20 of 100."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polyfed import api
from polyfed.config import Config, parse

PER_ROUND, SAMPLES_EACH, ROUNDS = 20, 80, 24


def measure() -> dict[str, Any]:
    """Return the time per round of both populations, their ratio, and the peak memory of the large one."""
    seconds, memory = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for clients in (100, 10_000):
            result = _run(clients, Path(folder))
            # the second half: by then every client of the small population has participated
            seconds[clients] = statistics.median(result["seconds"]["by_round"][ROUNDS // 2 :])
            memory[clients] = result["memory"]["peak_rss"]
    return {
        "figures": {
            "seconds_per_round_100": round(seconds[100], 4),
            "seconds_per_round_10000": round(seconds[10_000], 4),
            "ratio": round(seconds[10_000] / seconds[100], 4),
            "peak_gb_10000": round(memory[10_000] / 1e9, 3),
        },
        "settings": {"per_round": PER_ROUND, "samples_each": SAMPLES_EACH, "rounds": ROUNDS, "method": "fedproto"},
    }


def population_config(clients: int, rounds: int, engine: Mapping[str, Any] | None = None) -> Config:
    """Return the config of a run with `PER_ROUND` clients in every round."""
    return parse(
        {
            "method": "fedproto",
            "clients": clients,
            "participation": PER_ROUND / clients,
            "rounds": rounds,
            "data": {"partition": {"scheme": "iid"}},
            "evaluate": {"personal": False, "global": False},
            **({"engine": dict(engine)} if engine else {}),
        }
    )


def _run(clients: int, folder: Path) -> dict[str, Any]:
    from polyfed.benchmarks.synthetic import images

    data = images(f"population{clients}", clients * SAMPLES_EACH, 8, folder / "cache")
    return api.run_config(population_config(clients, ROUNDS), out=folder / str(clients), data=data)
