"""Run commands on damaged run folders, each in a forked process with limits of time and memory."""

from __future__ import annotations

import contextlib
import io
import os
import resource
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.runs.damage import Case

import polyfed
from polyfed.cli.app import main
from polyfed.errors import RunError

SECRET = "the content of a file outside"
# Of one command: seconds of computing, seconds in all (a machine may be busy), and bytes in addition to those before.
CPU_SECONDS, SECONDS, MEMORY = 60, 600, 1 << 32
SMALL: dict[str, Any] = {
    "rounds": 2,
    "clients": 2,
    "data": {"limit": 60},
    "models": {"group": ["tiny-mlp"]},
    "engine": {"name": "serial"},
    "checkpoint": {"seconds": 0.0},
    "evaluate": {"features": True, "metrics": ["macro_f1", "confusion"]},
}


class _Interrupt:
    """Ends a run in its second round, after the checkpoint of the first."""

    def started(self, config: Any, folder: Path, done: int) -> None: ...

    def round_done(self, record: Any) -> None:
        if record.round == 2:
            raise RunError("interrupted by the test")

    def note(self, sentence: str) -> None: ...


def sound_runs(folder: Path, outside: Path) -> tuple[Path, Path]:
    """Create a finished run, an unfinished run, and a file that no command may show."""
    outside.write_text(f"{SECRET}: yes\nname: {SECRET}\n")
    finished, unfinished = folder / "finished", folder / "unfinished"
    polyfed.run("quickstart", method="fedproto", out=finished, **SMALL)
    with contextlib.suppress(RunError):
        polyfed.run("quickstart", method="fedproto", out=unfinished, observers=[_Interrupt()], **SMALL)
    return finished, unfinished


def warm_up(command: str, sound: Path, work: Path) -> None:
    """Run a command once on the sound run, so that forked processes need not import its modules."""
    if not (work / "sound").exists():
        shutil.copytree(sound, work / "sound")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        COMMANDS["inspect" if command == "resume" else command](work, work / "sound")


def attempt(command: str, case: Case, sound: Path, work: Path) -> str:
    """Run a command on a damaged copy of a run folder next to a sound one. Return what is wrong, or an empty text."""
    shutil.rmtree(work / "damaged", ignore_errors=True)
    damaged = case.make(sound, work / "damaged")
    status, output = forked(lambda: COMMANDS[command](work, damaged))
    if os.WIFSIGNALED(status):
        return f"ended by signal {os.WTERMSIG(status)}"
    if "unexpected" in output or "Traceback" in output:
        return " ".join(output.split())[:300]
    if SECRET in output:
        return "shows a file from outside of the run folder"
    code = os.WEXITSTATUS(status)
    if code not in {0, 1, 2}:
        return f"exit code {code}"
    if code and not output.strip():
        return "fails without a message"
    if command in {"compare", "report", "ui"} and code:
        return f"does not show the sound run: {' '.join(output.split())[:200]}"
    return ""


def forked(action: Callable[[], int]) -> tuple[int, str]:
    """Return the exit status and the output of an action in a forked process."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _limited(action, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        output = pipe.read().decode(errors="replace")
    return os.waitpid(child, 0)[1], output


def _limited(action: Callable[[], int], output: int) -> None:
    """Run an action with limits, write what it prints to a pipe, and exit."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(SECONDS)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    printed = io.StringIO()
    code = 70
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            code = action()
    except BaseException as error:  # the child must never return into the tests
        printed.write(f"unexpected {type(error).__name__}: {error}")
    with os.fdopen(output, "wb") as pipe:
        pipe.write(printed.getvalue().encode(errors="replace"))
    os._exit(code)


def _inspect(work: Path, damaged: Path) -> int:
    return main(["inspect", str(damaged)])


def _compare(work: Path, damaged: Path) -> int:
    return main(["compare", str(work)])


def _report(work: Path, damaged: Path) -> int:
    return main(["report", str(work), "--out", str(work / "report.html")])


def _resume(work: Path, damaged: Path) -> int:
    return main(["resume", str(damaged), "--quiet"])


def _ui(work: Path, damaged: Path) -> int:
    from polyfed.errors import PolyfedError
    from polyfed.ui.run_index import RunIndex
    from polyfed.ui.server import json_response

    index = RunIndex(work)
    while True:
        changes = index.changes(0)
        if not index.more:
            break
    answers: list[Any] = [changes]
    for run in changes["runs"]:
        for read in (lambda name: index.rounds(name, 0, 0), index.config, index.details):
            with contextlib.suppress(PolyfedError):
                answers.append(read(run["id"]))
        with contextlib.suppress(PolyfedError):
            answers.append(index.embedding(run["id"], 1, "pca"))
    text = bytes(json_response(answers).body).decode()
    sys.stdout.write(text)
    return 0 if '"sound"' in text else 1


COMMANDS: dict[str, Callable[[Path, Path], int]] = {
    "inspect": _inspect,
    "compare": _compare,
    "resume": _resume,
    "ui": _ui,
    "report": _report,
}
