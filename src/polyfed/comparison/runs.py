"""Load finished runs from folders or from results in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polyfed.errors import InputError
from polyfed.runs.added_keys import with_added_keys
from polyfed.runs.config_text import flatten, format_value
from polyfed.runs.discovery import find_run_folders
from polyfed.runs.folder import RunFolder
from polyfed.runs.records import Result

Source = str | Path | Mapping[str, Any]
MAX_UNFINISHED_NAMED = 3
# settings that differ between repetitions of an experiment or do not affect the result
NOT_COMPARED = frozenset({"name", "seed", "engine", "checkpoint", "track", "versions"})
FILTER = "server_filter"
AGGREGATION = "aggregation"
HEAD = "head"  # other prediction of methods that predict with class prototypes


@dataclass(frozen=True)
class Run:
    """A finished run: its result, and its config if it is known."""

    source: str  # its folder, for messages
    result: Result
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def seed(self) -> int:
        return self.result.seed

    def lookup(self, key: str) -> Any:
        """Return the value of a dotted key in the config or the result, or None if neither has it."""
        if key == "method":
            return self.result.method
        for tree in (with_added_keys(self.config) if self.config else {}, self.result):
            value: Any = tree
            for part in key.split("."):
                value = value.get(part) if isinstance(value, Mapping) else None
            if value is not None:
                return value.get("name", value) if isinstance(value, Mapping) else value
        return None

    def settings(self) -> dict[str, str]:
        """Return all settings that define the experiment, by dotted key, with the keys of later releases."""
        compared = {key: value for key, value in with_added_keys(self.config).items() if key not in NOT_COMPARED}
        settings = {key: format_value(value) for key, value in flatten(compared)}
        for key in (FILTER, AGGREGATION):
            if f"{key}.name" in settings:  # one key, with and without options
                settings[key] = settings.pop(f"{key}.name")
        return settings


def by_head(run: Run) -> Run | None:
    """Return a run with the results of its models' heads; None unless the method predicts in another way.

    Its method is called 'NAME by head'. Both share the same models, bytes and seconds.
    """
    accuracy: dict[str, Any] = {}
    for kind, measured in run.result["accuracy"].items():
        other = (measured or {}).get("also", {}).get(HEAD)
        if other is not None:
            values = [value for value in other["by_round"] if value is not None]
            accuracy[kind] = {"final": other["final"], "best": max(values), "by_round": other["by_round"]}
        else:
            accuracy[kind] = None
    if not any(accuracy.values()):
        return None
    recorded = run.result.get("metrics") or {}
    metrics = {kind: recorded.get(f"{kind} by {HEAD}", {}) for kind in accuracy}
    changed = {"method": f"{run.result.method} by {HEAD}", "accuracy": accuracy, "metrics": metrics}
    return Run(run.source, Result({**run.result, **changed}), run.config)


def load_runs(sources: Iterable[Source]) -> tuple[list[Run], list[str]]:
    """Load the finished runs among results, run folders and folders of runs.

    Return the runs, and messages about runs that were skipped. Files and folders without runs are ignored.
    """
    runs: list[Run] = []
    skipped: list[str] = []
    unfinished: list[Path] = []
    searched: list[str] = []
    visited: set[Path] = set()
    without_runs = 0
    for source in sources:
        if isinstance(source, Mapping):
            searched.append("a result")
            _add(runs, skipped, _run_of(source))
            continue
        searched.append(str(source))
        paths = [] if Path(source).is_file() else run_folders(Path(source))
        without_runs += not paths
        for path in paths:
            if path.resolve() in visited:
                continue
            visited.add(path.resolve())
            try:
                folder = RunFolder(path)
                result = folder.result()
                if result is None:
                    unfinished.append(path)
                else:
                    _add(runs, skipped, Run(str(path), result, folder.config()))
            except InputError as error:
                skipped.append(str(error))
    skipped = [*_unfinished_notes(unfinished), *skipped]
    if not runs:
        reason = f": {skipped[0]}" if skipped else ""
        raise InputError(f"there is no finished run in {', '.join(searched) or 'nothing'}{reason}")
    if without_runs:
        skipped.append(f"ignored {without_runs} path{'s' if without_runs > 1 else ''} without runs")
    return runs, skipped


def _unfinished_notes(paths: list[Path]) -> list[str]:
    if len(paths) > MAX_UNFINISHED_NAMED:
        return [f"{len(paths)} runs are not finished, such as {paths[0]}; resume them with: polyfed resume"]
    return [f"{path} is not finished; resume it with: polyfed resume {path}" for path in paths]


def _run_of(source: Mapping[str, Any]) -> Run:
    """Return the run of a result in memory, with its config if its folder is known."""
    folder = source.folder if isinstance(source, Result) else None
    if folder is None or not RunFolder(folder).exists():
        return Run("a result", Result(source))
    return Run(str(folder), Result(source), RunFolder(folder).config())


def run_folders(path: Path) -> list[Path]:
    """Return the run folders at or below a path. Raise InputError if the path is no folder."""
    if not path.is_dir():
        raise InputError(f"there is no folder {path}; name run folders, or folders that hold them")
    return [Path(folder) for folder in find_run_folders(str(path))]


def _add(runs: list[Run], skipped: list[str], run: Run) -> None:
    """Append a run if its result has the values of a comparison, else a message to `skipped`."""
    try:
        run.result.check()
    except ValueError as error:
        skipped.append(f"{run.source} {error}")
    else:
        runs.append(run)
