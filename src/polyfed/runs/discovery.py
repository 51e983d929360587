"""Find run folders below a folder."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator

CONFIG_FILE = frozenset({"config.yaml"})
ANY_RUN_FILE = frozenset({"config.yaml", "events.jsonl", "result.json"})  # also finds damaged run folders
SKIPPED = re.compile(r"^\.|\.old-\d+$")


def find_run_folders(
    path: str, *, markers: Collection[str] = CONFIG_FILE, max_depth: int | None = None
) -> Iterator[str]:
    """Yield the folders at or below `path` that hold one of the files `markers`, sorted by name.

    Run folders are not searched for further runs. Hidden folders, folders whose run was started again (`NAME.old-1`),
    symbolic links and folders without read permission are skipped.
    """
    try:
        with os.scandir(path) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
    except OSError:
        return
    if any(entry.name in markers for entry in entries):
        yield path
    elif max_depth is None or max_depth > 0:
        deeper = None if max_depth is None else max_depth - 1
        for entry in entries:
            if not SKIPPED.search(entry.name) and entry.is_dir(follow_symlinks=False):
                yield from find_run_folders(entry.path, markers=markers, max_depth=deeper)
