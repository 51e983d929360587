"""A small data file of a paper, and copies of it with one entry replaced."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

SMALL: dict[str, Any] = {
    "title": "Toy",
    "reference": "nobody",
    "method": "fedvtc",
    "measured_by": "accuracy",
    "settings": {
        "digits": {
            "title": "MNIST",
            "cpu": {"preset": "fedvtc-digits", "set": {"data.partition.alpha": 1.0, "method.finetune_lr": 0.01}},
        }
    },
    "rows": {
        "local": {"title": "local training", "set": {"method": "local"}, "cpu": {"rounds": 25}},
        "fedvtc": {"title": "FedVTC"},
        "before": {"title": "before", "variant_of": "fedvtc", "moment": "untuned"},
        "few": {"title": "few", "variant_of": "fedvtc", "set": {"method.samples_per_class": 3}},
    },
    "tables": {
        "table1": {
            "title": "Table 1",
            "measure": {"of": "global"},
            "settings": ["digits"],
            "rows": ["local", "before", "fedvtc", "few"],
            "published": {"digits": {"fedvtc": 88.7}},
        }
    },
    "claims": [{"says": "it helps", "where": "Table 1", "table": "table1", "better": "fedvtc", "than": ["before"]}],
    "tuned": {"digits": {"fedvtc": {"method.finetune_lr": 0.02, "train.lr": 0.5}}},
}


def with_entry(keys: str, value: Any) -> dict[str, Any]:
    """Return the small file with one entry replaced."""
    raw: dict[str, Any] = deepcopy(SMALL)
    *path, last = keys.split("/")
    inner: Any = raw
    for key in path:
        inner = inner[int(key) if isinstance(inner, list) else key]
    inner[last] = value
    return raw
