"""All runs below a folder: what there is now, what changed since somebody looked, and each run's rounds."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

from polyfed.errors import InputError, RunError
from polyfed.runs import lock_owner
from polyfed.runs.config_text import flatten, format_value
from polyfed.runs.discovery import ANY_RUN_FILE, find_run_folders
from polyfed.runs.folder import RunFolder
from polyfed.ui.history import History
from polyfed.ui.run_summary import Seen, Stamp, Summary, look, newest, read_config, stamp, unknown

FRESH = 0.5  # seconds for which one look at the folder serves everybody
FOLLOWED = 64  # histories that are kept
BUDGET = 0.3  # seconds that one look may take: what is not read by then is read by the next
DEPTH = 8


class Runs:
    """Answers what the page asks. Several threads may ask."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock = threading.Lock()
        self._looked = -FRESH
        self.more = False  # there are files that were not read yet
        self._seen: dict[str, tuple[Stamp, Seen]] = {}
        self._now: dict[str, Summary] = {}
        # a server that was started anew counts from a later number, so that nobody mistakes its answers
        self._first = self._revision = time.time_ns() // 1_000_000
        self._revisions: dict[str, int] = {}  # of runs that are there and of runs that were
        self._histories: OrderedDict[str, History] = OrderedDict()
        self._asked: set[tuple[str, int, lock_owner.Holder]] = set()  # run, when its lock was signed, by whom

    def changes(self, since: int) -> dict[str, Any]:
        """Summaries that changed after a revision, and which runs have gone."""
        with self._lock:
            self._look()
            known = since if self._first <= since <= self._revision else -1
            changed = [name for name, at in self._revisions.items() if at > known]
            return {
                "folder": str(self.root),
                "now": time.time(),
                "revision": self._revision,
                "whole": known < 0,
                "more": self.more,
                "runs": [self._now[name].to_json() for name in changed if name in self._now],
                "gone": [name for name in changed if name not in self._now],
            }

    def rounds(self, identity: str, generation: int, count: int) -> dict[str, Any]:
        """The rounds of a run that somebody does not know yet."""
        self._folder(identity)
        with self._lock:
            return {"id": identity, **self._history(identity).since(generation, count)}

    def config(self, identity: str) -> dict[str, Any]:
        """Every setting of a run by dotted key, as text; or why they cannot be read, which is an answer too."""
        folder = self._folder(identity)
        try:
            return {"settings": {key: format_value(value) for key, value in flatten(read_config(folder.config_file))}}
        except (ValueError, RecursionError) as error:
            return {"error": str(error)}

    def stop(self, identity: str) -> None:
        """Ask a run to end after its round. Asked once: a second time would end it in the middle of one."""
        folder = self._folder(identity)
        who = lock_owner.read(folder.lock_file)
        if who is None:
            raise RunError("nobody is working on this run")
        signed = (identity, folder.lock_file.stat().st_mtime_ns, who)  # one process may work on many runs in turn
        with self._lock:
            if signed in self._asked:
                return
            who.stop(folder.lock_file)
            self._asked.add(signed)

    def _history(self, identity: str) -> History:
        history = self._histories.pop(identity, None) or History(self.root / identity / "events.jsonl")
        self._histories[identity] = history  # the newest is last
        while len(self._histories) > FOLLOWED:
            self._histories.popitem(last=False)
        history.look()
        return history

    def _folder(self, identity: str) -> RunFolder:
        """Only what was found below the root has a name here, so no name leads out of it."""
        with self._lock:
            if identity not in self._now:
                self._look()
            if identity not in self._now:
                raise InputError(f"there is no run '{identity}' in {self.root}")
        return RunFolder(self.root / identity)

    def _look(self) -> None:
        if time.monotonic() - self._looked < FRESH and not self.more:
            return
        root = str(self.root)
        folders = find_run_folders(root, markers=ANY_RUN_FILE, max_depth=DEPTH)
        # a name that is no valid text cannot be sent to a browser
        stamps = {path[len(root) :].lstrip("/") or ".": stamp(path) for path in folders if is_text(path[len(root) :])}
        seen = {name: self._seen[name] for name, signs in stamps.items() if self._seen.get(name, ((),))[0] == signs}
        until = time.monotonic() + BUDGET
        unread = sorted(stamps.keys() - seen.keys(), key=lambda name: newest(stamps[name]), reverse=True)
        for name in unread:
            if time.monotonic() > until:
                break
            seen[name] = (stamps[name], look(name, self.root / name, stamps[name]))
        clock = time.time()
        now = {
            name: seen[name][1].now(clock) if name in seen else self._now.get(name) or unknown(name, signs)
            for name, signs in stamps.items()
        }
        self.more = len(seen) < len(stamps) or not self._complete(seen, now, until)
        different = [name for name in {**now, **self._now} if self._now.get(name) != now.get(name)]
        if different:
            self._revision += 1
            self._revisions.update(dict.fromkeys(different, self._revision))
        self._seen, self._now = seen, now
        self._looked = time.monotonic()

    def _complete(self, seen: dict[str, tuple[Stamp, Seen]], now: dict[str, Summary], until: float) -> bool:
        """Add the sums of runs without a result from their events, while there is time. True if none is left."""
        for name, summary in now.items():
            if summary.state in {"finished", "broken"} or summary.up is not None:
                continue
            if time.monotonic() > until:
                return False
            sums = self._history(name).sums()
            signs, one = seen[name]
            seen[name] = (signs, replace(one, summary=replace(one.summary, **sums)))
            now[name] = replace(summary, **sums)
        return True


def is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
