"""Finished runs: found in folders, or handed over as results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polyfed.errors import InputError
from polyfed.runs.config_text import flatten, format_value
from polyfed.runs.discovery import find_run_folders
from polyfed.runs.folder import RunFolder
from polyfed.runs.records import Result

Source = str | Path | Mapping[str, Any]
# what changes between runs that are repetitions of each other, and what does not change a result
NOT_COMPARED = frozenset({"name", "seed", "engine", "checkpoint", "track", "versions"})


@dataclass(frozen=True)
class Run:
    """One finished run: its result, and its config where that is known."""

    where: str
    result: Result
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def seed(self) -> int:
        return self.result.seed

    def lookup(self, key: str) -> Any:
        """The value of a dotted key in the config, else in the result; None if neither has it."""
        if key == "method":
            return self.result.method
        for tree in (self.config, self.result):
            value: Any = tree
            for part in key.split("."):
                value = value.get(part) if isinstance(value, Mapping) else None
            if value is not None:
                return value
        return None

    def settings(self) -> dict[str, str]:
        """Every setting that makes this run another experiment than its neighbours, by dotted key."""
        kept = {key: value for key, value in self.config.items() if key not in NOT_COMPARED}
        return {key: format_value(value) for key, value in flatten(kept)}


def gather(sources: Iterable[Source]) -> tuple[list[Run], list[str]]:
    """The finished runs among results, run folders and folders of them; a sentence for each that was left out."""
    runs: list[Run] = []
    left_out: list[str] = []
    looked: list[str] = []
    seen: set[Path] = set()
    for source in sources:
        if isinstance(source, Mapping):
            looked.append("a result")
            _add(runs, left_out, Run("a result", Result(source)))
            continue
        looked.append(str(source))
        for path in run_folders(Path(source)):
            if path.resolve() in seen:
                continue
            seen.add(path.resolve())
            try:
                folder = RunFolder(path)
                result = folder.result()
                if result is None:
                    left_out.append(f"{path} is not finished; go on with: polyfed resume {path}")
                else:
                    _add(runs, left_out, Run(str(path), result, folder.config()))
            except InputError as error:
                left_out.append(str(error))
    if not runs:
        why = f": {left_out[0]}" if left_out else ""
        raise InputError(f"there is no finished run in {', '.join(looked) or 'nothing'}{why}")
    return runs, left_out


def run_folders(path: Path) -> list[Path]:
    """Return the run folders at or below a path. Raise InputError if the path is no folder."""
    if not path.is_dir():
        raise InputError(f"there is no folder {path}; name run folders, or folders that hold them")
    return [Path(folder) for folder in find_run_folders(str(path))]


def _add(runs: list[Run], left_out: list[str], run: Run) -> None:
    """Append a run if its result has what a comparison needs; otherwise say why it is left out."""
    try:
        run.result.check()
    except ValueError as error:
        left_out.append(f"{run.where} {error}")
    else:
        runs.append(run)
