"""One run in a line: read from the small files of its folder, and from no more of its events than their end."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import yaml

from polyfed.runs import lock_owner
from polyfed.runs.config_text import read_yaml
from polyfed.runs.folder import RunFolder
from polyfed.runs.lock_owner import Holder
from polyfed.runs.records import KINDS, Result, RoundRecord, finite, integer

FILES = ("config.yaml", "result.json", "events.jsonl", ".lock")
Stamp = tuple[tuple[int, int] | None, ...]  # when each of them was changed, and its size
BLOCK, MOST = 1 << 16, 1 << 23  # how much of the end of the events is read at once, and at most
SILENT = 600.0  # seconds after which a run of another machine, whose process cannot be seen, counts as dead


@dataclass(frozen=True)
class Summary:
    """What the list shows of a run."""

    id: str  # its folder, relative to the folder that is looked at
    state: str  # running, finished, stopped, failed, died, broken; reading, before it is known
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
        return {field.name.rstrip("_"): getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True)
class Seen:
    """A summary as far as it follows from files, and who was working on the run."""

    summary: Summary
    holder: Holder | None = None

    def now(self, time: float) -> Summary:
        """With the state at this moment: whether a process lives shows in no file."""
        if self.holder is None or self.summary.state in {"finished", "broken"}:
            return self.summary
        here = self.holder.here()
        alive = self.holder.alive() if here else time - self.summary.changed < SILENT
        if not alive:
            return self.summary
        return replace(self.summary, state="running", reason="", stoppable=here and self.holder.listens)


def stamp(folder: str) -> Stamp:
    """Changes whenever a file changes that a summary is read from."""
    found: list[tuple[int, int] | None] = []
    for name in FILES:
        try:
            facts = os.stat(f"{folder}/{name}")  # noqa: PTH116 - four of them for a thousand runs, once a second
        except OSError:
            found.append(None)
        else:
            found.append((facts.st_mtime_ns, facts.st_size))
    return tuple(found)


def newest(seen: Stamp) -> float:
    """When something last changed in a run folder."""
    return max((facts[0] for facts in seen if facts is not None), default=0) / 1e9


def unknown(identity: str, seen: Stamp) -> Summary:
    """A run whose files were not read yet."""
    return Summary(identity, "reading", name=identity, changed=newest(seen))


def look(identity: str, folder: Path, seen: Stamp) -> Seen:
    """Read the summary of one run folder. Whatever is wrong with it becomes a broken run with a reason."""
    empty = replace(unknown(identity, seen), state="broken")
    run = RunFolder(folder)
    try:
        if seen[0] is None:
            raise ValueError("it has no config.yaml")
        if seen[1] is not None:
            return Seen(_finished(empty, run))
        return Seen(_unfinished(empty, run), lock_owner.read(run.lock_file))
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, OSError, yaml.YAMLError) as error:
        return Seen(replace(empty, reason=" ".join(str(error).split())[:300]))
    except RecursionError as error:
        return Seen(replace(empty, reason=" ".join(str(error).split())[:300]))


def _finished(empty: Summary, run: RunFolder) -> Summary:
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


def _unfinished(empty: Summary, run: RunFolder) -> Summary:
    config = read_config(run.config_file)
    method, data = config.get("method"), config.get("data")
    last, ending, reason = _last_words(run.events_file)
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


def _last_words(events: Path) -> tuple[RoundRecord | None, str, str]:
    """The last round, and how the run ended as far as it says so itself: without a word, it died."""
    last: RoundRecord | None = None
    ending, reason = "", ""
    for event in _backwards(events):
        kind = event.get("event")
        if not ending and kind in {"stopped", "failed"}:
            ending, reason = str(kind), str(event.get("message", ""))
        elif not ending and kind in {"round", "started", "resumed"}:
            ending, reason = "died", "its process ended without a word"
        if kind == "round" and (last := RoundRecord.from_damaged(event)) is not None:
            break
    return last, ending or "died", reason or ("it never began" if not ending else "")


def _backwards(events: Path) -> Any:
    """Events from the end, without those that only say what left a client."""
    try:
        file = events.open("rb")
    except FileNotFoundError:
        return
    with file:
        end = file.seek(0, os.SEEK_END)
        read, rest = 0, b""
        while end > 0 and read < MOST:
            size = min(BLOCK, end)
            end -= size
            file.seek(end)
            lines = (file.read(size) + rest).split(b"\n")
            read += size
            rest = lines.pop(0) if end > 0 else b""  # it may begin in the block before
            for line in reversed(lines):
                event = parse_line(line)
                if event is not None:
                    yield event


def parse_line(line: bytes) -> dict[str, Any] | None:
    """One event; None for a line that was cut by a kill, and for what left a client, which is most lines."""
    if not line or line.endswith(b'"event": "left"}'):
        return None
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None


def read_config(path: Path) -> dict[str, Any]:
    """Return the mapping in a config file. Raise ValueError if there is none."""
    return _mapping(path, read_yaml)


def _mapping(path: Path, parse: Any) -> dict[str, Any]:
    try:
        found = parse(path.read_text())
    except OSError as error:
        raise ValueError(f"{path.name} cannot be read: {error.strerror}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark is not None else ""
        raise ValueError(f"{path.name} cannot be read: it is not YAML{where}") from None
    except ValueError as error:
        raise ValueError(f"{path.name} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path.name} holds a {type(found).__name__}, expected a mapping of keys to values")
    return found
