"""Fast reader of `events.jsonl`: a run with many clients has hundreds of thousands of events."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from polyfed.runs.safe_files import open_regular

# start of a `left` event; most lines are such events, and the rest of the line is the same in most rounds
_UPLOAD_EVENT = re.compile(r'\{"time": [0-9.]+, "round": ([0-9]+), (?="client": )')


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a file in order, without lines that are not JSON, such as one cut off by a kill.

    Raise OSError if the file cannot be read.
    """
    decode = json.JSONDecoder().decode
    decoded: dict[str, dict[str, Any]] = {}  # upload events by the part of the line after the round
    with contextlib.suppress(FileNotFoundError), open_regular(path) as raw:
        for line in io.TextIOWrapper(raw, encoding="utf-8", errors="replace", newline="\n"):
            start = _UPLOAD_EVENT.match(line)
            if start is not None and (same := decoded.get(line[start.end() :])) is not None:
                yield {**same, "round": int(start[1])}
                continue
            try:
                event = decode(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(event, dict) and isinstance(event.get("event"), str):
                if start is not None and event["event"] == "left":
                    decoded[line[start.end() :]] = event
                yield event
