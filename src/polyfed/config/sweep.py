"""Sweeps: the grid of override values times seeds. Every combination is a run with its own folder."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyfed.config.config import Config, parse
from polyfed.config.early_checks import check_names
from polyfed.config.loading import apply_overrides
from polyfed.errors import InputError

MAX_NAME_LENGTH = 150  # of a run folder's name; file systems allow 255 bytes


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep."""

    name: str
    config: Config
    folder: Path


def plan_sweep(raw: Mapping[str, Any], axes: Sequence[str], seeds: Sequence[int], out: Path) -> list[SweepRun]:
    """Return every run of the grid. Raise `InputError` for a wrong axis or config; data is not checked here."""
    parsed = [_parse_axis(text) for text in axes]
    keys = [key for key, _ in parsed]
    for key in keys:
        if keys.count(key) > 1:
            raise InputError(f"the key '{key}' is given {keys.count(key)} times; write its values as {key}=v1,v2")
        if key in {"name", "seed"}:
            reason = "give seeds with --seeds" if key == "seed" else "runs of a sweep are named after their settings"
            raise InputError(f"'{key}' cannot be an axis of a sweep; {reason}")
    runs = []
    for values in itertools.product(*(values for _, values in parsed)):
        overrides = [f"{key}={value}" for key, value in zip(keys, values, strict=True)]
        for seed in seeds:
            name = folder_name(overrides, seed)
            entries = {**apply_overrides(raw, overrides), "seed": seed, "name": name}
            config = parse(entries, ", ".join(overrides) or "config")
            check_names(config)
            runs.append(SweepRun(name, config, out / name))
    return runs


def parse_seeds(text: str) -> list[int]:
    """Parse seeds such as '0,1,2'. Duplicates are dropped."""
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"\d+", part) for part in parts):
        raise InputError(f"--seeds is '{text}'; expected comma-separated integers of at least 0, such as 0,1,2")
    return list(dict.fromkeys(int(part) for part in parts))


def split_values(text: str) -> list[str]:
    """Split a text at its commas, but not inside brackets or quotes."""
    parts, depth, quote, start = [], 0, "", 0
    for position, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    return [part.strip() for part in [*parts, text[start:]]]


def folder_name(overrides: Sequence[str], seed: int) -> str:
    """Return a readable folder name. Add a digest if characters had to be replaced, so that names stay unique."""
    text = ",".join(overrides)
    safe = re.sub(r"[^A-Za-z0-9._=,+-]+", "_", text).strip("_,.")
    if safe != text or len(safe) > MAX_NAME_LENGTH:
        safe = f"{safe[:MAX_NAME_LENGTH]}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"
    return f"{safe}-seed{seed}" if safe and overrides else f"seed{seed}"


def _parse_axis(text: str) -> tuple[str, list[str]]:
    key, equals, values = text.partition("=")
    if not equals or not key:
        raise InputError(f"'{text}' is not of the form key=v1,v2, such as method=local,fedproto")
    distinct = list(dict.fromkeys(split_values(values)))
    if "" in distinct:
        raise InputError(f"'{text}' has an empty value; write key=v1,v2 without an extra comma")
    return key, distinct
