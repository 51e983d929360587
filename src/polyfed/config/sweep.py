"""A sweep: the grid of some overrides times some seeds, each cell a run with a folder of its own."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyfed import catalogue
from polyfed.config import Config, parse
from polyfed.config.sources import override
from polyfed.errors import InputError, nearest

LONGEST_NAME = 150  # of a cell's folder; file systems stop at 255 bytes


@dataclass(frozen=True)
class Cell:
    """One run of a sweep."""

    name: str
    config: Config
    folder: Path


def plan(raw: Mapping[str, Any], overrides: Sequence[str], seeds: Sequence[int], out: Path) -> list[Cell]:
    """Every cell of the grid, checked as far as a config can be without its data."""
    axes = [_axis(text) for text in overrides]
    keys = [key for key, _ in axes]
    for key in keys:
        if keys.count(key) > 1:
            raise InputError(f"the key '{key}' is given {keys.count(key)} times; write its values as {key}=v1,v2")
        if key in {"name", "seed"}:
            allowed = (
                "seeds are given with --seeds" if key == "seed" else "runs of a sweep are named after their cell"
            )
            raise InputError(f"'{key}' cannot be an axis of a sweep; {allowed}")
    cells = []
    for values in itertools.product(*(values for _, values in axes)):
        chosen = [f"{key}={value}" for key, value in zip(keys, values, strict=True)]
        for seed in seeds:
            name = folder_name(chosen, seed)
            config = parse({**override(raw, chosen), "seed": seed, "name": name}, ", ".join(chosen) or "config")
            _check_method(config)
            cells.append(Cell(name, config, out / name))
    return cells


def _check_method(config: Config) -> None:
    """Refuse a method that does not exist before anything runs, unless an import may still bring it."""
    known = {word for listed in catalogue.methods().values() for word in (listed.name, *listed.aliases)}
    name = config.method["name"]
    if name not in known and not config.imports:
        raise InputError(f"there is no method called '{name}'; {nearest(name, known)}")


def seeds_of(text: str) -> list[int]:
    """'0,1,2' as numbers."""
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"\d+", part) for part in parts):
        raise InputError(
            f"--seeds is '{text}'; expected whole numbers of 0 or more with commas between, such as 0,1,2"
        )
    return list(dict.fromkeys(int(part) for part in parts))


def split_values(text: str) -> list[str]:
    """The parts between commas, leaving alone those inside of brackets and quotes."""
    parts, depth, quote, start = [], 0, "", 0
    for at, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return [part.strip() for part in [*parts, text[start:]]]


def folder_name(chosen: Sequence[str], seed: int) -> str:
    """A folder's name that can be read and typed; where that loses something, a digest keeps names apart."""
    text = ",".join(chosen)
    safe = re.sub(r"[^A-Za-z0-9._=,+-]+", "_", text).strip("_,.")
    if safe != text or len(safe) > LONGEST_NAME:
        safe = f"{safe[:LONGEST_NAME]}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"
    return f"{safe}-seed{seed}" if safe and chosen else f"seed{seed}"


def _axis(text: str) -> tuple[str, list[str]]:
    key, equals, values = text.partition("=")
    if not equals or not key:
        raise InputError(f"'{text}' is not of the form key=v1,v2, such as method=local,fedproto")
    found = list(dict.fromkeys(split_values(values)))
    if "" in found:
        raise InputError(f"'{text}' has an empty value; write key=v1,v2 without a comma too many")
    return key, found
