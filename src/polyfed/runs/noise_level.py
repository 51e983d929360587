"""Compare the noise of differential privacy with the signal that it hides, from the records of a run."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from polyfed.runs.folder import RunFolder
from polyfed.runs.records import Result

NUMBER_BYTES = 4  # uploads are in single precision


def noise_to_signal(privacy: Mapping[str, Any], uploads: Iterable[Mapping[str, Any]]) -> dict[str, tuple[float, int]]:
    """Return the ratio of noise to signal of every protected field, and the number of clients in a mean.

    The noise is the expected L2 norm of the noise in the mean over the clients of a round. The signal is the clipping
    norm, an upper bound of what any client's row or message contributes. `privacy` is the entry of a result, and
    `uploads` are the `left` events. Fields without a clipping norm, or that were never uploaded, have no ratio.
    """
    widths: dict[str, int] = {}
    clients: dict[str, dict[int, set[str]]] = {}  # of each field, by round
    for event in uploads:
        for name, size in event["fields"].items():
            settings = privacy["fields"].get(name)
            if settings is not None:
                width = _width(event.get("shapes", {}).get(name, ""), size, settings["unit"])
                widths[name] = max(width, widths.get(name, 0))
                clients.setdefault(name, {}).setdefault(event["round"], set()).add(event["client"])
    ratios = {}
    for name, width in widths.items():
        clip, sigma = privacy["fields"][name]["clip"], privacy["fields"][name]["sigma"]
        if clip and sigma is not None:
            count = max(len(names) for names in clients[name].values())
            ratios[name] = (sigma * math.sqrt(width / count) / clip, count)
    return ratios


def noise_messages(result: Result) -> list[str]:
    """Return a warning for every field of a finished run whose noise is larger than its signal can be."""
    privacy = result.get("privacy")
    if not privacy or result.folder is None:
        return []
    uploads = [event for event in RunFolder(result.folder).events() if event["event"] == "left"]
    return [
        f"privacy: the noise in '{name}' is stronger than the signal: its L2 norm in a mean over {count} clients is "
        f"{ratio:.1f} times the clipping norm, so expect a low accuracy; raise epsilon, min_count or the number of "
        "clients, or run fewer rounds"
        for name, (ratio, count) in noise_to_signal(privacy, uploads).items()
        if ratio > 1
    ]


def _width(shape: str, size: int, unit: str) -> int:
    """Return how many numbers get noise together: those of a row, or of the whole message.

    `shape` is text such as '3 rows of 64', '128 x 10' or '4 tensors'.
    """
    dimensions = [int(text) for text in re.findall(r"\d+", shape)]
    if shape.endswith("tensors") or len(dimensions) < 2:
        return size // NUMBER_BYTES
    return math.prod(dimensions) if unit == "message" else math.prod(dimensions[1:])
