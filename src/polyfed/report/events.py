"""Fast reader of `events.jsonl`: a run with many clients has hundreds of thousands of events."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# start of a `left` event; most lines are such events, and the rest of the line is the same in most rounds
_UPLOAD_EVENT = re.compile(r'\{"time": [0-9.]+, "round": ([0-9]+), (?="client": )')


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a file in order, without lines that are not JSON, such as one cut off by a kill."""
    decode = json.JSONDecoder().decode
    decoded: dict[str, dict[str, Any]] = {}  # upload events by the part of the line after the round
    with contextlib.suppress(FileNotFoundError), path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            start = _UPLOAD_EVENT.match(line)
            if start is not None and (same := decoded.get(line[start.end() :])) is not None:
                yield {**same, "round": int(start[1])}
                continue
            try:
                event = decode(line)
            except json.JSONDecodeError:
                continue
            if isinstance(event, dict) and isinstance(event.get("event"), str):
                if start is not None and event["event"] == "left":
                    decoded[line[start.end() :]] = event
                yield event
