"""Benchmarks: each measures ratios within one run, because machines differ and are noisy."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from polyfed.errors import InputError, nearest

_NAMES = {
    "aggregation": "memory of a server that averages 50 clients of ResNet-26, against 5 of them",
    "dffke": "memory of DFFKE's server and 10 clients on 6,000 images of 28x28, in one process",
    "engines": "a round of 20 clients that do nothing on every engine, against serial; start-up of each",
    "fedl2g": "client seconds of a FedL2G round against FedDistill's (logits) and FedProto's (features)",
    "fedfree": "FedFree's server time in a round against the clients' training time",
    "inco": "InCo's share of the time of a round with ten clients of tiny-resnets",
    "memory": "what a client holds at its peak in a step of FedVTC, against FedProto with the same model",
    "overhead": "a training round on the pool against bare training loops in as many processes",
    "population": "a round of 20 clients out of 10,000 against one out of 100",
    "report": "a report over 100 runs of 200 rounds: seconds, peak memory, size of the page",
    "slicing": "building and slicing ResNet-152: seconds, and peak memory against its own size",
    "startup": "seconds until `polyfed list methods` has answered and until the first round of a run begins",
    "ui": "the live page over 1,000 runs of 200 rounds: seconds to its first view, per look, and to open a run",
}


def names() -> list[str]:
    return list(_NAMES)


def describe(name: str) -> str:
    return _NAMES[name]


def run(name: str | None = None, out: Path = Path("benchmarks/out")) -> Iterator[dict[str, Any]]:
    """Run one benchmark, or all; each gives its `name`, `figures` and `settings`, and writes them to `out`."""
    if name is not None and name not in _NAMES:
        raise InputError(f"there is no benchmark called '{name}'; {nearest(name, _NAMES)}")
    for wanted in [name] if name else names():
        module = importlib.import_module(f"polyfed.benchmarks.{wanted}")
        result: dict[str, Any] = {"name": wanted, **module.measure()}
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{wanted}.json").write_text(json.dumps(result, indent=1))
        yield result
