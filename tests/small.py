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
# by method
SMALL: dict[str, dict[str, Any]] = {
    "ccvr": {"virtual": 30, "epochs": 2},
    "dffke": DFFKE,
    "fedgen": {"generator_steps": 5, "hidden": 32},
    "fedktl-lite": {"server_epochs": 3, "latent_width": 16},
    "fedl2g": {"warmup": 2},
    "fedlatent": {"samples_per_class": 6},
    "fedtgp": {"server_epochs": 3},
    "fedvtc": {"samples_per_class": 6, "finetune_epochs": 1},
}
