"""Config keys of later releases. Runs of earlier releases behave as with the values that are listed here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# with these values, the keys leave the hash of a config as it was
ADDED_KEYS: Mapping[str, Mapping[str, object]] = {
    "models": {"start": None},
    "data": {"tokenizer": None, "validation": 0.0},
    "train": {"precision": "fp32", "compile": False, "micro_batch": None},
}
# an added section; configs list the options of their rule only
AGGREGATION = {"name": "mean", "share": 0.2, "norm": None, "keep": 1, "secure": False}


def with_added_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config of a run folder with all keys of later releases, so that it can be compared with others."""
    complete = dict(config)
    for section, defaults in ADDED_KEYS.items():
        if isinstance(config.get(section), Mapping):
            complete[section] = {**defaults, **config[section]}
    rule = config.get("aggregation", {})
    complete["aggregation"] = {**AGGREGATION, **(rule if isinstance(rule, Mapping) else {"name": rule})}
    return complete
