"""A process of a sweep: it imports torch once and then runs one run after another."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from polyfed.config import Config
from polyfed.errors import PolyfedError
from polyfed.machine import fast_imports
from polyfed.progress import snapshot_of, snapshot_until
from polyfed.runs.records import RoundRecord

STOPPED = 130  # exit code of a run that the user stopped


class EventWriter:
    """Writes events as lines of JSON to a file descriptor.

    Each line is one unbuffered write: a signal handler may write an event while another one is being written, and
    Python's buffers are not reentrant.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, event: str, **facts: Any) -> None:
        rest = (json.dumps({"event": event, **facts}) + "\n").encode()
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]


class _EventObserver:
    """Observer of an experiment that writes its progress as events."""

    def __init__(self, events: EventWriter) -> None:
        self._events = events

    def started(self, config: Config, folder: Path, done: int) -> None:
        self._events.write("started", rounds=config.rounds, before=asdict(snapshot_until(folder, done)))

    def round_done(self, record: RoundRecord) -> None:
        self._events.write("round", snapshot=asdict(snapshot_of(record)))

    def note(self, sentence: str) -> None:
        self._events.write("note", message=sentence)


def serve() -> None:
    """Run the requests from stdin until its end."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored if the command runs in the background
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    # events go to the original stdout; what user code prints goes to stderr, so that it does not mix with them
    events = EventWriter(os.dup(sys.stdout.fileno()))
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        with fast_imports(permanent=True):
            import polyfed.federation.simulation  # noqa: F401  (with torch, in all processes at once)

        for text in sys.stdin:
            request = json.loads(text)
            sys.path[:] = request["path"]
            config = Config.from_dict(request["config"])
            if request["check"]:
                events.write("checked", message=_check_config(config))
            else:
                _serve_request(config, Path(request["out"]), request["force"], events)
    except (KeyboardInterrupt, BrokenPipeError):
        os._exit(STOPPED)  # the command has closed its end of the pipe
    sys.stdout.flush()  # what user code printed
    os._exit(0)  # at once: unloading torch takes half a second


def _end_with_parent(parent: int) -> None:
    """End this process if the command that started it is gone, such as after `kill -9`."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(STOPPED)  # the pool's processes notice this and end as well


def _check_config(config: Config) -> str | None:
    """Return what `polyfed check` says against a config, or None."""
    from polyfed.federation import simulation

    try:
        federation = simulation.build_federation(config)
        federation.check(federation.profiles())
    except PolyfedError as error:
        return str(error)
    except Exception as error:  # of the user's own method or model
        return f"{type(error).__name__}: {error}"
    return None


def _serve_request(config: Config, out: Path, force: bool, events: EventWriter) -> None:
    from polyfed.cli.run import record_crash

    try:
        from polyfed.api import run_config

        with record_crash(out):
            run_config(config, out=out, force=force, observers=[_EventObserver(events)])
        events.write("done")
    except PolyfedError as error:
        events.write("ended", code=error.exit_code, message=str(error))
    except KeyboardInterrupt:
        events.write("ended", code=STOPPED, message="stopped before its first round")
    except BrokenPipeError:
        raise
    except Exception as error:
        events.write("ended", code=1, message=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    serve()
