"""Benchmarks of speed and memory, one module each.

They report ratios measured within one run, because machines differ and their load varies.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from polyfed.errors import InputError, nearest

_NAMES = {
    "aggregation": "peak memory of a server that averages 50 clients with ResNet-26, compared with 5 clients",
    "balance": "time of a round with unequal clients that start in client order, compared with the longest first",
    "device": "this machine's GPU, or processor: bit-identical results, synchronisations, throughput, TFLOPS",
    "dffke": "peak memory of DFFKE's server and 10 clients on 6,000 images of 28x28, in one process",
    "engines": "time of a round of 20 idle clients on every engine, compared with serial; start-up times",
    "fedl2g": "client time of a FedL2G round, compared with FedDistill (logits) and FedProto (features)",
    "fedfree": "FedFree's server time in a round, compared with the clients' training time",
    "inco": "InCo's fraction of the time of a round with ten clients of tiny-resnets",
    "means": "means of 20 ResNet-18 at the server (FedAvg, HeteroFL), compared with plain running sums",
    "memory": "peak memory of a client in a step of FedVTC, compared with FedProto with the same model",
    "messages": "GB/s of encoding and decoding 100 MB, compared with copying memory; time of small messages",
    "overhead": "time of a training round on the pool, compared with plain training loops in as many processes",
    "peers": "rounds of polyfed, Flower's simulation, Apple's pfl and HtFLlib in turns, at the same accuracy",
    "population": "time of a round with 20 of 10,000 clients, compared with 20 of 100",
    "report": "reports over 100 runs of 200 rounds and over six runs with features: seconds, peak memory, size",
    "scale": "populations of 100 to 100,000 clients at 20 per round: time of a round, memory and disk",
    "slicing": "building and slicing ResNet-152: seconds, and peak memory against its own size",
    "startup": "CPU seconds of help, lists, refusals and check, and seconds until the first round of a run starts",
    "sweep": "ten quickstart runs in one sweep, compared with ten commands, with one round per run and with ten",
    "ui": "the dashboard over 1,000 runs of 200 rounds: seconds to its first view, per update, and to open a run",
}


def names() -> list[str]:
    """Return the names of all benchmarks."""
    return list(_NAMES)


def describe(name: str) -> str:
    """Return the description of a benchmark."""
    return _NAMES[name]


def run(
    name: str | None = None, out: Path = Path("benchmarks/out"), page: Path | None = None, **options: Any
) -> Iterator[dict[str, Any]]:
    """Run one benchmark, or all. Yield the `name`, `figures` and `settings` of each, and write them to `out`.

    With a `page`, write the figures into a section of this Markdown file too. `options` are for `peers`.
    """
    if name is not None and name not in _NAMES:
        raise InputError(f"there is no benchmark called '{name}'; {nearest(name, _NAMES)}")
    # peers installs other libraries, so it runs only if it is asked for
    for benchmark in [name] if name else [known for known in names() if known != "peers"]:
        module = importlib.import_module(f"polyfed.benchmarks.{benchmark}")
        result: dict[str, Any] = {"name": benchmark, **module.measure(**(options if benchmark == "peers" else {}))}
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{result['name'].replace(' --task ', '-')}.json").write_text(json.dumps(result, indent=1))
        if page is not None:
            from polyfed.benchmarks.page import write_section

            write_section(page, result)
        yield result
