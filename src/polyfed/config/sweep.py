"""Sweeps: the grid of override values times seeds. Every combination is a run with its own folder."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyfed.config.config import Config, parse
from polyfed.config.early_checks import check_names
from polyfed.config.loading import apply_overrides
from polyfed.config.run_names import run_names
from polyfed.errors import InputError
from polyfed.runs.folder import OLD, RunFolder

Identity = Callable[[Config], str]  # a digest of a config that is equal for configs of the same run


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep."""

    name: str
    config: Config
    folder: Path
    force: bool = False  # move the existing run folder away


def plan_sweep(raw: Mapping[str, Any], axes: Sequence[str], seeds: Sequence[int], out: Path) -> list[SweepRun]:
    """Return every run of the grid. Raise `InputError` for a wrong axis or config; data is not checked here.

    A run that is already in the folder `out` keeps its name.
    """
    parsed = [_parse_axis(text) for text in axes]
    keys = [key for key, _ in parsed]
    for key in keys:
        if keys.count(key) > 1:
            raise InputError(f"the key '{key}' is given {keys.count(key)} times; write its values as {key}=v1,v2")
        if key in {"name", "seed"}:
            reason = "give seeds with --seeds" if key == "seed" else "runs of a sweep are named after their settings"
            raise InputError(f"'{key}' cannot be an axis of a sweep; {reason}")
    grid = [dict(zip(keys, values, strict=True)) for values in itertools.product(*(values for _, values in parsed))]
    combinations: list[tuple[dict[str, Any], str]] = []
    for values in grid:
        overrides = [f"{key}={value}" for key, value in values.items()]
        combinations.append((apply_overrides(raw, overrides), ", ".join(overrides) or "config"))
    configs = [parse({**entries, "seed": seeds[0], "name": None}, where) for entries, where in combinations]
    for config in configs:
        check_names(config)
    names = iter(run_names([str(config.method["name"]) for config in configs], grid, seeds))
    existing = existing_runs(out)
    runs = [
        plan_run(config.model_copy(update={"seed": seed}), next(names), out, existing)
        for config in configs
        for seed in seeds
    ]
    return list({run.folder: run for run in runs}.values())  # values such as 1 and 1.0 are one run


def plan_run(
    config: Config, name: str, out: Path, existing: Mapping[str, Path], identity: Identity = Config.hash
) -> SweepRun:
    """Return a run with its folder: the one that it has from an earlier sweep, or a new one that is not taken."""
    folder = existing.get(identity(config))
    if folder is None:
        folder = out / (f"{name}-{identity(config)[:6]}" if (out / name).exists() else name)
    return SweepRun(folder.name, config.model_copy(update={"name": folder.name}), folder)


def existing_runs(out: Path, identity: Identity = Config.hash) -> dict[str, Path]:
    """Return the run folders in a folder by the identity of their config, the finished one if there are several.

    Damaged folders, and those that `--force` moved away, are left out.
    """
    runs: dict[str, Path] = {}
    for path in sorted(out.iterdir()) if out.is_dir() else ():
        if (path / "config.yaml").is_file() and OLD not in path.name:
            with contextlib.suppress(InputError):
                key = identity(parse(RunFolder(path).config(), str(path)))
                if key not in runs or (path / "result.json").is_file():
                    runs[key] = path
    return runs


def parse_seeds(text: str) -> list[int]:
    """Parse seeds such as '0,1,2' or '0-4'. Duplicates are dropped."""
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        if match is None or (match[2] is not None and int(match[2]) < int(match[1])):
            raise InputError(f"--seeds is '{text}'; expected integers of at least 0, such as 0,1,2 or 0-4")
        seeds += range(int(match[1]), int(match[2] or match[1]) + 1)
    return list(dict.fromkeys(seeds))


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


def _parse_axis(text: str) -> tuple[str, list[str]]:
    key, equals, values = text.partition("=")
    if not equals or not key:
        raise InputError(f"'{text}' is not of the form key=v1,v2, such as method=local,fedproto")
    distinct = list(dict.fromkeys(split_values(values)))
    if "" in distinct:
        raise InputError(f"'{text}' has an empty value; write key=v1,v2 without an extra comma")
    return key, distinct
