"""Short names for the runs of a sweep. They say only what varies: `fedproto-a0.1-s0`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence

MAX_LENGTH = 150  # of a run folder's name; file systems allow 255 bytes
# keys whose values need no key beside them
VALUE_ONLY = frozenset(
    {
        "method",
        "method.name",
        "data.dataset",
        "data.partition.scheme",
        "models.group",
        "splitting",
        "server_filter",
        "server_filter.name",
        "aggregation",
        "aggregation.name",
        "train.optimizer",
    }
)
SHORT_KEYS = {
    "data.partition.alpha": "a",
    "data.partition.classes_per_client": "k",
    "clients": "c",
    "rounds": "r",
    "participation": "p",
    "train.lr": "lr",
    "train.epochs": "e",
    "train.steps": "steps",
    "train.batch_size": "b",
    "train.momentum": "m",
    "train.weight_decay": "wd",
    "models.feature_dim": "d",
}


def run_names(methods: Sequence[str], combinations: Sequence[Mapping[str, str]], seeds: Sequence[int]) -> list[str]:
    """Return a name for every combination of values and every seed, in that order. All names differ.

    `methods` has the method of each combination, and `combinations` the values of all keys of the sweep. Keys with
    the same value in all combinations are left out.
    """
    varying = [key for key in (combinations[0] if combinations else ()) if len({c[key] for c in combinations}) > 1]
    last_parts = [key.rpartition(".")[2] for key in varying]
    names = []
    for method, values in zip(methods, combinations, strict=True):
        parts = [_safe(method)]
        for key, last in zip(varying, last_parts, strict=True):
            if key not in ("method", "method.name"):
                parts.append(_part(key, values[key], unique=last_parts.count(last) == 1))
        names.append("-".join(part for part in parts if part)[:MAX_LENGTH])
    repeated = {name for name in names if names.count(name) > 1}
    texts = [",".join(f"{key}={value}" for key, value in values.items()) for values in combinations]
    distinct = [f"{n}-{digest(t)}" if n in repeated else n for n, t in zip(names, texts, strict=True)]
    return [f"{name}-s{seed}" for name in distinct for seed in seeds]


def digest(text: str) -> str:
    """Return six characters that differ for different texts."""
    return hashlib.sha256(text.encode()).hexdigest()[:6]


def _part(key: str, value: str, *, unique: bool) -> str:
    if key in VALUE_ONLY:
        return _safe(value)
    number = re.fullmatch(r"[-+]?[\d.]+(e[-+]?\d+)?", value) is not None
    short = SHORT_KEYS.get(key) or (key.rpartition(".")[2] if unique else key)
    return _safe(f"{short}{value}" if number and not value.startswith(("-", "+")) else f"{short}={value}")


def _safe(text: str) -> str:
    """Replace characters that are unusual in names of folders."""
    return re.sub(r"[^A-Za-z0-9._=+-]+", "_", text).strip("_.-")
