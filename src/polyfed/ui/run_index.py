"""Index of all runs below a folder: their summaries, what changed since a revision, and the rounds of each run."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

from polyfed.comparison.runs import NOT_COMPARED
from polyfed.errors import InputError, RunError
from polyfed.runs import lock_owner
from polyfed.runs.added_keys import with_added_keys
from polyfed.runs.config_text import flatten, format_value
from polyfed.runs.discovery import ANY_RUN_FILE, find_run_folders
from polyfed.runs.folder import RunFolder
from polyfed.ui.history import History
from polyfed.ui.run_details import project_features, run_details
from polyfed.ui.run_summary import (
    FileStamps,
    RunSnapshot,
    RunSummary,
    file_stamps,
    last_change,
    read_config,
    read_snapshot,
    unread_summary,
)

MIN_INTERVAL = 0.5  # seconds between two scans of the folder
MAX_HISTORIES = 64  # in memory
MAX_DETAILS = 8  # in memory
TIME_BUDGET = 0.3  # seconds per scan: files that are not read by then are read by the next scan
MAX_DEPTH = 8  # of folders


class RunIndex:
    """Answers the requests of the page. Thread-safe."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock = threading.Lock()
        self._last_scan = -MIN_INTERVAL
        self.more = False  # some files were not read yet
        self._snapshots: dict[str, tuple[FileStamps, RunSnapshot]] = {}
        self._summaries: dict[str, RunSummary] = {}
        # revisions of a restarted server start at a later number, so that no page mixes up two servers
        self._first = self._revision = time.time_ns() // 1_000_000
        self._revisions: dict[str, int] = {}  # last change of every run, including removed ones
        self._histories: OrderedDict[str, History] = OrderedDict()
        self._details: OrderedDict[str, tuple[FileStamps, dict[str, Any]]] = OrderedDict()
        self._details_lock = threading.Lock()
        self._stop_requests: set[tuple[str, int, lock_owner.LockOwner]] = set()  # run, time of its lock, owner

    def changes(self, since: int) -> dict[str, Any]:
        """Return the summaries that changed after a revision, and the runs that were removed."""
        with self._lock:
            self._scan()
            known = since if self._first <= since <= self._revision else -1
            changed = [run_id for run_id, revision in self._revisions.items() if revision > known]
            return {
                "folder": str(self.root),
                "now": time.time(),
                "revision": self._revision,
                "full": known < 0,
                "more": self.more,
                "runs": [self._summaries[run_id].to_json() for run_id in changed if run_id in self._summaries],
                "removed": [run_id for run_id in changed if run_id not in self._summaries],
            }

    def rounds(self, run_id: str, generation: int, count: int) -> dict[str, Any]:
        """Return the rounds of a run that are new for a page."""
        self._folder(run_id)
        with self._lock:
            return {"id": run_id, **self._history(run_id).since(generation, count)}

    def config(self, run_id: str) -> dict[str, Any]:
        """Return every setting of a run by dotted key, as text, or an error message if they cannot be read.

        `repeated` are the top-level keys that differ between repetitions of an experiment.
        """
        folder = self._folder(run_id)
        try:
            config = with_added_keys(read_config(folder.config_file))
            settings = {key: format_value(value) for key, value in flatten(config)}
            return {"settings": settings, "repeated": sorted(NOT_COMPARED)}
        except (ValueError, RecursionError) as error:
            return {"error": str(error)}

    def details(self, run_id: str) -> dict[str, Any]:
        """Return clients, data partition, uploads and metrics of a run, or an error message if files are damaged."""
        folder = self._folder(run_id)
        stamps = file_stamps(str(folder.path))
        with self._details_lock:  # several pages may ask for the same run
            known = self._details.pop(run_id, None)
            if known is None or known[0] != stamps:
                try:
                    known = stamps, run_details(folder.path)
                except InputError as error:
                    known = stamps, {"error": str(error)}
            self._details[run_id] = known
            while len(self._details) > MAX_DETAILS:
                self._details.popitem(last=False)
        with self._lock:
            return {**known[1], "metrics": self._history(run_id).metrics()}

    def embedding(self, run_id: str, number: int, projection: str) -> dict[str, Any]:
        """Return the features of a round as points in the unit square."""
        folder = self._folder(run_id)
        with self._details_lock:  # a t-SNE takes seconds: compute one at a time
            return {"points": project_features(folder.path, number, projection)}

    def stop(self, run_id: str) -> None:
        """Ask a run to stop after its round. Send one signal only: a second one would interrupt the round."""
        folder = self._folder(run_id)
        owner = lock_owner.read(folder.lock_file)
        if owner is None:
            raise RunError("no process is working on this run")
        request = (run_id, folder.lock_file.stat().st_mtime_ns, owner)  # a process may run several runs in turn
        with self._lock:
            if request in self._stop_requests:
                return
            owner.stop(folder.lock_file)
            self._stop_requests.add(request)

    def _history(self, run_id: str) -> History:
        history = self._histories.pop(run_id, None) or History(self.root / run_id / "events.jsonl")
        self._histories[run_id] = history  # the most recently used is last
        while len(self._histories) > MAX_HISTORIES:
            self._histories.popitem(last=False)
        history.update()
        return history

    def _folder(self, run_id: str) -> RunFolder:
        """Return the folder of a run in the index. Other names raise InputError, so no name leads out of the root."""
        with self._lock:
            if run_id not in self._summaries:
                self._scan()
            if run_id not in self._summaries:
                raise InputError(f"there is no run '{run_id}' in {self.root}")
        return RunFolder(self.root / run_id)

    def _scan(self) -> None:
        """Bring the summaries up to date, unless this was done a moment ago."""
        if time.monotonic() - self._last_scan < MIN_INTERVAL and not self.more:
            return
        stamps = self._file_stamps()
        deadline = time.monotonic() + TIME_BUDGET
        snapshots = {
            run_id: self._snapshots[run_id]
            for run_id, current in stamps.items()
            if self._snapshots.get(run_id, ((),))[0] == current
        }
        unread = sorted(
            stamps.keys() - snapshots.keys(), key=lambda run_id: last_change(stamps[run_id]), reverse=True
        )
        for run_id in unread:
            if time.monotonic() > deadline:
                break
            snapshots[run_id] = (stamps[run_id], read_snapshot(run_id, self.root / run_id, stamps[run_id]))
        now = time.time()
        summaries = {
            run_id: snapshots[run_id][1].at(now)
            if run_id in snapshots
            else self._summaries.get(run_id) or unread_summary(run_id, current)
            for run_id, current in stamps.items()
        }
        self.more = len(snapshots) < len(stamps) or not self._add_totals(snapshots, summaries, deadline)
        changed = [
            run_id
            for run_id in {**summaries, **self._summaries}
            if self._summaries.get(run_id) != summaries.get(run_id)
        ]
        if changed:
            self._revision += 1
            self._revisions.update(dict.fromkeys(changed, self._revision))
        self._snapshots, self._summaries = snapshots, summaries
        self._last_scan = time.monotonic()

    def _file_stamps(self) -> dict[str, FileStamps]:
        """Return the stamps of all run folders by run id."""
        root = str(self.root)
        stamps = {}
        for path in find_run_folders(root, markers=ANY_RUN_FILE, max_depth=MAX_DEPTH):
            name = path[len(root) :].lstrip("/")
            if is_text(name):  # other names cannot be sent to a browser
                stamps[name or "."] = file_stamps(path)
        return stamps

    def _add_totals(
        self,
        snapshots: dict[str, tuple[FileStamps, RunSnapshot]],
        summaries: dict[str, RunSummary],
        deadline: float,
    ) -> bool:
        """Add the totals of unfinished runs from their events until the deadline. Return whether all are done."""
        for run_id, summary in summaries.items():
            if summary.state in {"finished", "broken"} or summary.up is not None:
                continue
            if time.monotonic() > deadline:
                return False
            totals = self._history(run_id).totals()
            stamps, snapshot = snapshots[run_id]
            snapshots[run_id] = (stamps, replace(snapshot, summary=replace(snapshot.summary, **totals)))
            summaries[run_id] = replace(summary, **totals)
        return True


def is_text(name: str) -> bool:
    """Return whether a file name is valid Unicode."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
