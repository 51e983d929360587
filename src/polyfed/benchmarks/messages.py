"""Messages: CPU time of encoding, decoding, averaging and writing, compared with a copy of memory.

Digests, copies and messages are measured in turns. Figures are medians, in GB/s or microseconds of CPU time.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from polyfed.core.averaging import WeightedMean
from polyfed.core.class_tables import ClassTable
from polyfed.core.codec import decode, encode
from polyfed.core.frame_digest import BLAKE3, XXH3
from polyfed.core.message_header import read_header
from polyfed.machine import keep_freed_memory
from polyfed.runs.state_store import FolderStore

TURNS = 9
TENSORS, NUMBERS = 50, 500_000  # of the large message: 100 MB
REPLIES = 6  # that are added to a mean in a turn, because a mean adds several at a time
SMALL_REPEATS = 500
WIDTH, CLASSES = 64, 10  # of the small message, a class table


def measure() -> dict[str, Any]:
    """Return the throughput of large messages, the time of small ones, and ratios to a copy of memory."""
    keep_freed_memory()  # as runs do
    generator = torch.Generator().manual_seed(0)
    large = {"weights": {f"layer{i}": torch.randn(NUMBERS, generator=generator) for i in range(TENSORS)}}
    table = ClassTable(torch.arange(CLASSES), torch.randn(CLASSES, WIDTH, generator=generator))
    size = 4 * TENSORS * NUMBERS
    with tempfile.TemporaryDirectory() as folder:
        seconds = _in_turns({**_measurements(large), **_server_work(large, Path(folder))}, TURNS, 1)
    seconds["mean"] /= REPLIES
    small = _in_turns(_measurements({"means": table}), TURNS, SMALL_REPEATS)
    figures = {f"{name}_gb_per_second": round(size / value / 1e9, 2) for name, value in seconds.items()}
    for name, value in seconds.items():
        if name != "copy":
            figures[f"{name}_over_copy"] = round(value / seconds["copy"], 2)
    for name, value in small.items():
        if name != "copy":
            figures[f"small_{name}_microseconds"] = round(1e6 * value, 1)
    return {"figures": figures, "settings": {"turns": TURNS, "megabytes": size / 1e6}}


def _measurements(payload: Mapping[str, Any]) -> dict[str, Callable[[], object]]:
    """Return what is measured with a payload, by name."""
    inside, to_sites = encode(payload, XXH3).data, encode(payload, BLAKE3).data
    view = memoryview(inside)
    return {
        "copy": lambda: b"".join((b"", view)),
        "encode": lambda: encode(payload, XXH3),
        "decode": lambda: decode(inside, read_header(inside)),
        "encode_for_sites": lambda: encode(payload, BLAKE3),
        "decode_from_sites": lambda: decode(to_sites, read_header(to_sites, cryptographic=True)),
    }


def _server_work(payload: Mapping[str, Any], folder: Path) -> dict[str, Callable[[], object]]:
    """Return what a server does with messages: add `REPLIES` of them to a mean, and write a state of this size."""
    store, mean, frame = FolderStore(folder), WeightedMean(), [encode(payload).data]

    def add_replies() -> None:
        for _ in range(REPLIES):
            mean.add(payload["weights"], 1.0)

    return {"mean": add_replies, "write": lambda: store.write("client", 1, frame)}


def _in_turns(works: Mapping[str, Callable[[], object]], turns: int, repeats: int) -> dict[str, float]:
    """Return the median CPU seconds of every work. The works take turns, so that all see the same machine."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(turns):
        for name, work in works.items():
            began = time.process_time()
            for _ in range(repeats):
                work()
            seconds[name].append((time.process_time() - began) / repeats)
    return {name: statistics.median(values) for name, values in seconds.items()}
