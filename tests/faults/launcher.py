"""Starts runs as processes that can be killed, without importing torch anew for each: they are forked from here.

Reads one request a line: the settings of `api.run`, and what shall happen after which round. Says each run's process
id, what it raised for its user, and how it ended.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

from polyfed import api
from polyfed.engines import worker  # noqa: F401  (imports torch once, here)
from polyfed.errors import PolyfedError
from polyfed.experiment import Observer
from polyfed.runs.records import RoundRecord


class Event:
    """An event after a round, before its checkpoint."""

    def __init__(self, round: int) -> None:
        self._round = round

    def started(self, config: object, folder: Path, done: int) -> None: ...

    def note(self, sentence: str) -> None: ...

    def round_done(self, record: RoundRecord) -> None:
        if record.round == self._round:
            self.happen()

    def happen(self) -> None:
        raise NotImplementedError


class FullDisk(Event):
    """Limit file sizes to one byte, so that writes fail as on a full disk."""

    def happen(self) -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))


class CtrlC(Event):
    def happen(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)


EVENTS = {"full disk": FullDisk, "ctrl c": CtrlC}


def tell(**facts: Any) -> None:
    os.write(sys.stdout.fileno(), json.dumps(facts).encode() + b"\n")


def run(setting: dict[str, Any], happens: dict[str, int]) -> int:
    """Run once and return the exit code."""
    observers: list[Observer] = [EVENTS[name](round) for name, round in happens.items()]
    try:
        api.run(**setting, observers=observers)
    except PolyfedError as error:
        tell(error=str(error))
        return error.exit_code
    return 0


def main() -> None:
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            code = 99
            try:
                code = run(**json.loads(line))
            finally:
                os._exit(code)
        tell(pid=pid)
        _, status = os.waitpid(pid, 0)
        tell(ended=os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
