"""Runs several runs at a time, each in a process that imports torch once and then runs one after the other.

Cells go to such a process, and what happens comes back, as lines of JSON. The processes are apart from the terminal,
so that Ctrl-C reaches only the command, which then asks each run to stop with a checkpoint.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from polyfed.cli.progress import Board, Glance, Line, brief, until
from polyfed.config import Config
from polyfed.config.sweep import SweepRun
from polyfed.errors import PolyfedError
from polyfed.runs.records import RoundRecord

STOPPED = 130


@dataclass
class Outcomes:
    """How the cells of a sweep ended: names with a sentence each."""

    failed: dict[str, str] = field(default_factory=dict)
    stopped: dict[str, str] = field(default_factory=dict)


class Crew:
    """Processes that work through a queue of cells."""

    def __init__(self, cells: Sequence[SweepRun], jobs: int, board: Board) -> None:
        self._queue = deque(cells)
        self._jobs = min(jobs, len(cells))
        self._board = board
        self._children: dict[int, subprocess.Popen[str]] = {}
        self._lines: dict[int, Line] = {}  # what each process works on
        self._stops = 0
        self.outcomes = Outcomes()

    def work(self) -> Outcomes:
        """Until the queue is empty, or the user wants to stop."""
        threads = [threading.Thread(target=self._run_queue, args=(k,), daemon=True) for k in range(self._jobs)]
        with self._stopping_politely():
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.2)  # short, so that a signal is seen
        return self.outcomes

    def _run_queue(self, number: int) -> None:
        """The life of one place: its process gets cell after cell. A process that dies takes one cell with it."""
        while not self._stops:
            try:
                cell = self._queue.popleft()
            except IndexError:
                break
            child = self._children.get(number)
            if child is None or child.poll() is not None:
                child = self._children[number] = _start()
            line = self._lines[number] = self._board.add(cell.name)
            self._run_cell(child, cell, line)
        last = self._children.get(number)
        if last is not None:
            with contextlib.suppress(OSError):
                _pipe(last.stdin).close()  # it ends when there is nothing more to read
            last.wait()

    def _run_cell(self, child: subprocess.Popen[str], cell: SweepRun, line: Line) -> None:
        try:
            order = {"config": cell.config.to_dict(), "out": str(cell.folder), "path": sys.path}
            _pipe(child.stdin).write(json.dumps(order) + "\n")
            _pipe(child.stdin).flush()
            for text in _pipe(child.stdout):
                event = json.loads(text)
                match event["event"]:
                    case "started":
                        self._board.begin(line, event["rounds"], Glance(**event["before"]))
                    case "round":
                        self._board.advance(line, Glance(**event["glance"]))
                    case "note":
                        if not self._stops:  # that it stops, each run says too
                            self._board.note(f"{cell.name}: {event['message']}")
                    case "done":
                        return self._board.finish(line, "done")
                    case _:
                        return self._ended(cell, event["code"], event["message"], line)
        except OSError:
            pass  # its end of the pipe is gone
        code = child.wait()
        return self._ended(cell, STOPPED if self._stops else 1, f"its process ended with exit code {code}", line)

    def _ended(self, cell: SweepRun, code: int, message: str, line: Line) -> None:
        # a run that had not begun was just stopped, however its process ended
        stopped = code == STOPPED or (self._stops > 0 and line.rounds == 0)
        (self.outcomes.stopped if stopped else self.outcomes.failed)[cell.name] = message
        self._board.finish(line, "stopped" if stopped else "failed")

    @contextlib.contextmanager
    def _stopping_politely(self) -> Iterator[None]:
        """Each Ctrl-C goes on to the runs: the first ends them after their round, the second at once."""

        def ask_to_stop(number: int, frame: FrameType | None) -> None:
            self._stops += 1
            if self._stops == 1:
                self._board.note("stopping each run after its round, with a checkpoint; once more to stop at once")
            for place, child in list(self._children.items()):
                if child.poll() is None:
                    # before its first round a run has nothing to save, and Python would only print where it was
                    begun = self._lines[place].rounds > 0
                    polite = signal.SIGINT if begun else signal.SIGTERM
                    child.send_signal(polite if self._stops < 3 else signal.SIGKILL)

        before = {number: signal.signal(number, ask_to_stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _start() -> subprocess.Popen[str]:
    # -P: the folder it starts in does not come before installed packages; it gets the command's own path with a cell
    command = [sys.executable, "-P", "-m", "polyfed.cli.sweep_workers"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)


def _pipe(stream: Any) -> TextIO:
    return stream  # type: ignore[no-any-return]


# the other side


class Channel:
    """Lines of JSON to the command.

    Each is one write of its own, without a buffer: a run notes from inside a signal handler that it was asked to
    stop, which may be in the middle of another line's writing, and Python's buffers refuse that.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def tell(self, event: str, **facts: Any) -> None:
        rest = (json.dumps({"event": event, **facts}) + "\n").encode()
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]


class _Reporter:
    """An observer that writes what a board shows as lines of JSON."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def started(self, config: Config, folder: Path, done: int) -> None:
        self._channel.tell("started", rounds=config.rounds, before=asdict(until(folder, done)))

    def round_done(self, record: RoundRecord) -> None:
        self._channel.tell("round", glance=asdict(brief(record)))

    def note(self, sentence: str) -> None:
        self._channel.tell("note", message=sentence)


def serve() -> None:
    """Run the cells that come in until there are no more."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a command in the background had it ignored
    # what user code prints must not get between the lines of JSON, so it goes to stderr
    channel = Channel(os.dup(sys.stdout.fileno()))
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        for text in sys.stdin:
            order = json.loads(text)
            sys.path[:] = order["path"]
            _serve_one(Config.from_dict(order["config"]), Path(order["out"]), channel)
    except (KeyboardInterrupt, BrokenPipeError):
        os._exit(STOPPED)  # nobody listens any more


def _serve_one(config: Config, out: Path, channel: Channel) -> None:
    from polyfed.cli.run import crash_recorded

    try:
        from polyfed.api import run_config

        with crash_recorded(out):
            run_config(config, out=out, observers=[_Reporter(channel)])
        channel.tell("done")
    except PolyfedError as error:
        channel.tell("ended", code=error.exit_code, message=str(error))
    except KeyboardInterrupt:
        channel.tell("ended", code=STOPPED, message="stopped before its first round")
    except BrokenPipeError:
        raise
    except Exception as error:
        channel.tell("ended", code=1, message=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    serve()
