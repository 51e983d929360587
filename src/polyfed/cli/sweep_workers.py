"""The command's side of the processes that run the runs of a sweep.

Runs are sent to a process (`sweep_process`), and its events come back, as lines of JSON. The processes are not in the
terminal's process group: Ctrl-C reaches only the command, which then asks each run to stop with a checkpoint.
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
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, TextIO

from polyfed.cli.sweep_process import STOPPED
from polyfed.config.sweep import SweepRun
from polyfed.machine import with_large_pages
from polyfed.progress import ProgressBoard, ProgressSnapshot, RunProgress


@dataclass
class SweepOutcomes:
    """The runs of a sweep that did not finish: names with a message each."""

    failed: dict[str, str] = field(default_factory=dict)
    stopped: dict[str, str] = field(default_factory=dict)


class SweepWorkers:
    """Worker processes that take runs from a queue."""

    def __init__(self, runs: Sequence[SweepRun], count: int, board: ProgressBoard) -> None:
        self._queue = deque(runs)
        self._count = min(count, len(runs))
        self._board = board
        self._processes: dict[int, subprocess.Popen[str]] = {}
        self._progress: dict[int, RunProgress] = {}  # the current run of each worker
        self._interrupts = 0
        self.outcomes = SweepOutcomes()

    def check_all(self, runs: Sequence[SweepRun]) -> dict[str, str]:
        """Check runs as `polyfed check` does. Return the message of each run that cannot work, by name."""
        queue, messages = deque(runs), dict[str, str]()
        for worker in range(self._count):
            self._process(worker)  # all import torch at the same time, also those that have nothing to check

        def check(worker: int) -> None:
            while not self._interrupts:
                try:
                    run = queue.popleft()
                except IndexError:
                    return
                message = self._check(self._process(worker), run)
                if message is not None:
                    messages[run.name] = message

        self._in_threads(check)
        return {run.name: messages[run.name] for run in runs if run.name in messages}

    @property
    def interrupted(self) -> bool:
        """Whether the user has stopped the sweep."""
        return self._interrupts > 0

    def leave_out(self, names: Collection[str]) -> None:
        """Remove runs from the queue."""
        self._queue = deque(run for run in self._queue if run.name not in names)

    def close(self) -> None:
        """End the processes."""
        for process in self._processes.values():
            with contextlib.suppress(OSError):
                _pipe(process.stdin).close()  # the process ends at the end of its input
        for process in self._processes.values():
            process.wait()

    def run_all(self) -> SweepOutcomes:
        """Run until the queue is empty or the user stops the sweep."""
        self._in_threads(self._run_worker)
        self.close()
        return self.outcomes

    def _in_threads(self, target: Callable[[int], None]) -> None:
        """Call a function once per worker, in parallel, and wait for all calls."""
        threads = [threading.Thread(target=target, args=(k,), daemon=True) for k in range(self._count)]
        with self._handle_signals():
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.2)  # a short timeout, so that signal handlers get to run

    def _process(self, worker: int) -> subprocess.Popen[str]:
        """Return the process of a worker. Start a new one if it has ended."""
        process = self._processes.get(worker)
        if process is None or process.poll() is not None:
            process = self._processes[worker] = start_process()
        return process

    def _check(self, process: subprocess.Popen[str], run: SweepRun) -> str | None:
        try:
            _send(process, run, check=True)
            for text in _pipe(process.stdout):
                return json.loads(text)["message"]  # type: ignore[no-any-return]
        except OSError:
            pass  # the process has closed its end of the pipe
        return None if self._interrupts else f"its process ended with exit code {process.wait()}"

    def _run_worker(self, worker: int) -> None:
        """Send one run after another to a process. If the process dies, its run has failed and a new one starts."""
        while not self._interrupts:
            try:
                run = self._queue.popleft()
            except IndexError:
                break
            process = self._process(worker)
            progress = self._progress[worker] = self._board.add(run.name)
            self._execute(process, run, progress)

    def _execute(self, process: subprocess.Popen[str], run: SweepRun, progress: RunProgress) -> None:
        try:
            _send(process, run)
            for text in _pipe(process.stdout):
                event = json.loads(text)
                match event["event"]:
                    case "started":
                        self._board.start(progress, event["rounds"], ProgressSnapshot(**event["before"]))
                    case "round":
                        self._board.advance(progress, ProgressSnapshot(**event["snapshot"]))
                    case "note":
                        if not self._interrupts:  # every run notes that it stops; the board says so once
                            self._board.note(f"{run.name}: {event['message']}")
                    case "done":
                        return self._board.finish(progress, "done")
                    case _:
                        return self._end(run, event["code"], event["message"], progress)
        except OSError:
            pass  # the process has closed its end of the pipe
        code = process.wait()
        message = f"its process ended with exit code {code}"
        return self._end(run, STOPPED if self._interrupts else 1, message, progress)

    def _end(self, run: SweepRun, code: int, message: str, progress: RunProgress) -> None:
        # during an interrupt, a run without rounds counts as stopped, whatever its exit code is
        stopped = code == STOPPED or (self._interrupts > 0 and progress.rounds == 0)
        (self.outcomes.stopped if stopped else self.outcomes.failed)[run.name] = message
        self._board.finish(progress, "stopped" if stopped else "failed")

    @contextlib.contextmanager
    def _handle_signals(self) -> Iterator[None]:
        """Forward Ctrl-C to the runs: the first stops each run after its round, the second stops it at once."""

        def ask_to_stop(number: int, frame: FrameType | None) -> None:
            self._interrupts += 1
            if self._interrupts == 1:
                self._board.note("stopping each run after its round, with a checkpoint; interrupt again to stop now")
            for worker, process in list(self._processes.items()):
                if process.poll() is None:
                    # before its first round a run has nothing to save, and SIGINT would print a traceback
                    progress = self._progress.get(worker)
                    running = progress is not None and progress.rounds > 0
                    polite = signal.SIGINT if running else signal.SIGTERM
                    process.send_signal(polite if self._interrupts < 3 else signal.SIGKILL)

        before = {number: signal.signal(number, ask_to_stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def start_process() -> subprocess.Popen[str]:
    """Start a process that waits for the runs of a sweep."""
    # -P: do not put the working directory before installed packages; a request brings the command's own sys.path
    command = [sys.executable, "-P", "-m", "polyfed.cli.sweep_process"]
    environment, pipe = with_large_pages(os.environ), subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True, start_new_session=True)


def _send(process: subprocess.Popen[str], run: SweepRun, *, check: bool = False) -> None:
    """Ask a process to run a run, or only to check it."""
    settings = {"config": run.config.to_dict(), "out": str(run.folder), "force": run.force}
    request = {**settings, "path": sys.path, "check": check}
    _pipe(process.stdin).write(json.dumps(request) + "\n")
    _pipe(process.stdin).flush()


def _pipe(stream: Any) -> TextIO:
    return stream  # type: ignore[no-any-return]
