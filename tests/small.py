"""Fields with which a large method does little work: no check depends on them, and the defaults take seconds."""

from __future__ import annotations

from typing import Any

DFFKE: dict[str, Any] = {
    "width": 16,
    "decoder_channels": 8,
    "docking_steps": 5,
    "least_steps": 8,
    "max_local_epochs": 2,
    "decoder_epochs": 1,
    "exchange_epochs": 1,
}
