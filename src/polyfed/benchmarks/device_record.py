"""What `polyfed bench device` measured, kept in the cache folder for the estimates of `polyfed check`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from polyfed.data.cache import cache_root

FILE = "device.json"


@dataclass(frozen=True)
class DeviceRecord:
    """A device, and what training reaches on it with all workers together."""

    device: str
    tflops: float  # with large batches
    operations_per_second: float  # with small batches


def write_record(record: DeviceRecord, cache: Path | None = None) -> Path:
    """Replace the record of this machine and return its path."""
    path = cache_root(cache) / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(asdict(record)))
    temporary.replace(path)
    return path


def read_record(cache: Path | None = None) -> DeviceRecord | None:
    """Return the record of this machine, or None if there is none that can be read."""
    try:
        record = DeviceRecord(**json.loads((cache_root(cache) / FILE).read_text()))
        valid = isinstance(record.device, str) and record.tflops > 0 and record.operations_per_second > 0
        return record if valid else None
    except (OSError, ValueError, TypeError):
        return None
