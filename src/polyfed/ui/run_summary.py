"""Summary of one run for the list of the dashboard.

It reads the small files of the run folder, and only the end of the events.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import yaml

from polyfed.comparison.palette import method_style
from polyfed.runs import lock_owner, safe_files
from polyfed.runs.config_text import LimitError, read_yaml
from polyfed.runs.folder import RunFolder
from polyfed.runs.lock_owner import LockOwner
from polyfed.runs.records import KINDS, Result, RoundRecord, finite, integer

FILES = ("config.yaml", "result.json", "events.jsonl", ".lock")
FileStamps = tuple[tuple[int, int] | None, ...]  # modification time and size of each of these files
BLOCK, MAX_READ = 1 << 16, 1 << 23  # bytes at the end of the events that are read at once, and at most


@dataclass(frozen=True)
class RunSummary:
    """A row in the list of runs."""

    id: str  # the run folder, relative to the folder of the dashboard
    state: str  # running, finished, stopped, failed, died, broken, or reading if the files were not read yet
    reason: str = ""
    name: str = ""
    method: str = ""
    data: str = ""
    seed: int | None = None
    rounds: int | None = None
    done: int = 0
    personal: float | None = None
    personal_best: float | None = None
    global_: float | None = None
    global_best: float | None = None
    up: int | None = None
    down: int | None = None
    seconds: float | None = None
    failures: int | None = None
    changed: float = 0.0
    stoppable: bool = False

    def to_json(self) -> dict[str, Any]:
        colour, dashes = method_style(self.method)
        values = {field.name.rstrip("_"): getattr(self, field.name) for field in fields(self)}
        return {**values, "colour": colour, "dashes": dashes}


@dataclass(frozen=True)
class RunSnapshot:
    """The summary that follows from the files of a run, and the owner of its lock."""

    summary: RunSummary
    owner: LockOwner | None = None

    def at(self, now: float) -> RunSummary:
        """Return the summary with the state at this time. Files do not show whether a process is still alive."""
        if self.owner is None or self.summary.state in {"finished", "broken"}:
            return self.summary
        if not self.owner.active(self.summary.changed, now):
            return self.summary
        stoppable = self.owner.on_this_machine() and self.owner.stoppable
        return replace(self.summary, state="running", reason="", stoppable=stoppable)


def file_stamps(folder: str) -> FileStamps:
    """Return a value that changes whenever a file of the summary changes."""
    stamps: list[tuple[int, int] | None] = []
    for name in FILES:
        try:
            status = os.stat(f"{folder}/{name}")  # noqa: PTH116 - four files of a thousand runs, once a second
        except OSError:
            stamps.append(None)
        else:
            stamps.append((status.st_mtime_ns, status.st_size))
    return tuple(stamps)


def last_change(stamps: FileStamps) -> float:
    """Return the time of the last change in a run folder."""
    return max((stamp[0] for stamp in stamps if stamp is not None), default=0) / 1e9


def unread_summary(run_id: str, stamps: FileStamps) -> RunSummary:
    """Return the summary of a run whose files were not read yet."""
    return RunSummary(run_id, "reading", name=run_id, changed=last_change(stamps))


def read_snapshot(run_id: str, folder: Path, stamps: FileStamps) -> RunSnapshot:
    """Read the summary of a run folder. A damaged folder becomes a broken run with a reason."""
    empty = replace(unread_summary(run_id, stamps), state="broken")
    run = RunFolder(folder)
    try:
        if stamps[0] is None:
            raise ValueError("it has no config.yaml")
        if stamps[1] is not None:
            return RunSnapshot(_finished(empty, run))
        return RunSnapshot(_unfinished(empty, run), lock_owner.read(run.lock_file))
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, OSError, yaml.YAMLError) as error:
        return RunSnapshot(replace(empty, reason=" ".join(str(error).split())[:300]))
    except RecursionError as error:
        return RunSnapshot(replace(empty, reason=" ".join(str(error).split())[:300]))


def _finished(empty: RunSummary, run: RunFolder) -> RunSummary:
    result = Result(_mapping(run.result_file, json.loads))
    invalid = ValueError("result.json holds no result that polyfed wrote")
    if not isinstance(result.get("method"), str):
        raise invalid
    try:
        personal, global_ = (result.accuracy[kind] for kind in KINDS)
        return replace(
            empty,
            state="finished",
            name=result.name,
            method=result.method,
            data=result.dataset,
            seed=integer(result["seed"]),
            rounds=integer(result["rounds"]),
            done=integer(result["rounds"]) or 0,
            personal=finite(personal.final) if personal else None,
            personal_best=finite(personal.best) if personal else None,
            global_=finite(global_.final) if global_ else None,
            global_best=finite(global_.best) if global_ else None,
            up=integer(result.upload_bytes),
            down=integer(result.download_bytes),
            seconds=finite(result.seconds),
            failures=len(result.failures),
        )
    except (KeyError, TypeError, AttributeError):
        raise invalid from None


def _unfinished(empty: RunSummary, run: RunFolder) -> RunSummary:
    config = read_config(run.config_file)
    method, data = config.get("method"), config.get("data")
    last, ending, reason = _read_ending(run.events_file)
    return replace(
        empty,
        state=ending,
        reason=reason,
        name=str(config.get("name") or empty.id),
        method=str(method.get("name", "")) if isinstance(method, dict) else str(method or ""),
        data=str(data.get("dataset", "")) if isinstance(data, dict) else "",
        seed=integer(config.get("seed")),
        rounds=integer(config.get("rounds")),
        done=last.round if last else 0,
        personal=last.accuracy_value("personal") if last else None,
        global_=last.accuracy_value("global") if last else None,
    )


def _read_ending(events: Path) -> tuple[RoundRecord | None, str, str]:
    """Return the last round, and the state and reason with which the run ended. Without an end event, it died."""
    last: RoundRecord | None = None
    ending, reason = "", ""
    for event in _events_from_end(events):
        kind = event.get("event")
        if not ending and kind in {"stopped", "failed"}:
            ending, reason = str(kind), str(event.get("message", ""))
        elif not ending and kind in {"round", "started", "resumed"}:
            ending, reason = "died", "its process ended without a message"
        if kind == "round" and (last := RoundRecord.from_damaged(event)) is not None:
            break
    return last, ending or "died", reason or ("it did not start" if not ending else "")


def _events_from_end(events: Path) -> Iterator[dict[str, Any]]:
    """Yield events from the last to the first, without uploads."""
    try:
        file = safe_files.open_regular(events)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ValueError(f"{events.name} cannot be read: {safe_files.reason(error)}") from None
    with file:
        end = file.seek(0, os.SEEK_END)
        done, rest = 0, b""
        while end > 0 and done < MAX_READ:
            size = min(BLOCK, end)
            end -= size
            file.seek(end)
            lines = (file.read(size) + rest).split(b"\n")
            done += size
            rest = lines.pop(0) if end > 0 else b""  # may start in the block before
            for line in reversed(lines):
                event = parse_line(line)
                if event is not None:
                    yield event


def parse_line(line: bytes) -> dict[str, Any] | None:
    """Parse one event. Return None for a line that is not JSON, and for uploads, which are most lines."""
    if not line or line.endswith(b'"event": "left"}'):
        return None
    return safe_files.parse_event(line)


def read_config(path: Path) -> dict[str, Any]:
    """Return the mapping in a config file. Raise ValueError if there is none."""
    return _mapping(path, read_yaml)


def _mapping(path: Path, parse: Callable[[str], Any]) -> dict[str, Any]:
    try:
        value = parse(safe_files.read_text(path))
    except OSError as error:
        raise ValueError(f"{path.name} cannot be read: {safe_files.reason(error)}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark is not None else ""
        problem = error.problem if isinstance(error, LimitError) else "it is not YAML"
        raise ValueError(f"{path.name} cannot be read: {problem}{where}") from None
    except ValueError as error:
        raise ValueError(f"{path.name} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path.name} holds a {type(value).__name__}, expected a mapping of keys to values")
    return value
