"""The process that `warm_processes` forks others from. It imports what most commands need, and nothing else.

A process of the pool's fork server is forked along with each command, from here and before the command runs. It
knows as little of the command's code as the one that the pool would start.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import random
import runpy
import select
import signal
import socket
import sys
import threading
import time
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

# of other projects: what runs import, and what sites and coordinators import
PRELOADED = ["sklearn.datasets", "torch._dynamo", "torch._refs", "cryptography.x509", "fastapi", "httpx", "uvicorn"]


def prepare(request: dict[str, Any], first_on_path: str) -> None:
    """Set the folder, environment and search path as at the start of an interpreter."""
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    added = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [first_on_path, *added, *(path for path in sys.path[1:] if path not in added)]
    random.seed()


def set_streams(descriptors: list[int]) -> None:
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    for descriptor in set(descriptors):
        os.close(descriptor)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", buffering=-1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115


def execute(command: list[str]) -> None:
    """Run `-m module`, `-c code` or a script in a new `__main__`."""
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    if command[0] == "-m":
        sys.argv = command[1:]
        runpy._run_module_as_main(command[1])  # type: ignore[attr-defined]
    elif command[0] == "-c":
        sys.argv = ["-c", *command[2:]]
        exec(compile(command[1], "<string>", "exec"), main.__dict__)
    else:
        sys.argv = command
        main.__file__ = command[0]
        exec(compile(Path(command[0]).read_text(), command[0], "exec"), main.__dict__)


def exit_code_of(command: list[str]) -> int:
    try:
        execute(command)
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        traceback.print_exc()
        return -signal.SIGINT
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


class ForkedServer:
    """The handle of a fork server of the pool, in place of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def poll(self) -> int | None:
        try:
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return 0
        return 0 if state == "Z" else None

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        return 0


def fork_pool_server(request: dict[str, Any]) -> Any:
    """Fork the process that a pool of the command forks its workers from. Return its handle."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        prepare(request, request["cwd"])
        os.environ[fork_server.WORKER] = "1"
        fork_server.main(theirs.detach(), os.getppid())
        os._exit(0)
    theirs.close()
    server = object.__new__(fork_server.ForkServer)
    server._control, server._process = ours, ForkedServer(pid)  # type: ignore[assignment]
    return server


def start(request: dict[str, Any], descriptors: list[int], server: Any) -> None:
    """Become the command, and end with its exit code."""
    if request["new_session"]:
        os.setsid()
    set_streams(descriptors)
    command = request["command"]
    script = not command[0].startswith("-")
    prepare(request, str(Path(request["cwd"], command[0]).resolve().parent) if script else request["cwd"])
    fork_server._spare.append(server)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    code = exit_code_of(command)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code)


def supervise(status: socket.socket, request: dict[str, Any], descriptors: list[int]) -> None:
    """Start a command, say its process id, wait for it and say its exit code."""
    server = fork_pool_server(request)
    pid = os.fork()
    if pid == 0:
        status.close()
        start(request, descriptors, server)
    server._control.close()  # the fork server ends with the command
    for descriptor in set(descriptors):
        os.close(descriptor)
    while request["new_session"] and os.getpgid(pid) != pid:  # who kills its group must not kill that of the tests
        time.sleep(0.001)
    status.sendall(pid.to_bytes(8, "little"))
    _, ended = os.waitpid(pid, 0)
    status.sendall(os.waitstatus_to_exitcode(ended).to_bytes(8, "little", signed=True))
    os.waitpid(server._process.pid, 0)


def main(requests: socket.socket, ended: int) -> None:
    """Start processes until the test run has ended: then the main process of pytest no longer exists (`ended`)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    supervisors = set[int]()
    events: list[Any] = [requests, ended]
    while True:
        if ended in select.select(events, [], [])[0]:
            for pid in supervisors:
                kill_with_children(pid)
            return
        connection, _ = requests.accept()
        with connection:
            _, descriptors, _, _ = socket.recv_fds(connection, 16, 5)
        if not descriptors:
            continue  # the process that asked has ended
        supervisors -= {pid for pid in supervisors if os.waitpid(pid, os.WNOHANG)[0]}
        pid = os.fork()
        if pid:
            supervisors.add(pid)
        else:
            requests.close()
            os.close(ended)
            with os.fdopen(descriptors[1]) as file:
                file.seek(0)
                request = json.load(file)
            supervise(socket.socket(fileno=descriptors[0]), request, descriptors[2:])
            os._exit(0)
        for descriptor in descriptors:
            os.close(descriptor)


def kill_with_children(pid: int) -> None:
    """Kill the supervisor of a process that is still running, and what it started: the test run was interrupted."""
    children = [child for task in Path(f"/proc/{pid}/task").glob("*/children") for child in task.read_text().split()]
    for process in (pid, *map(int, children)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


if __name__ == "__main__":
    files, descriptors = (sys.argv[1], f"{sys.argv[1]}.lock"), [int(number) for number in sys.argv[2:]]
    main_process = os.getpid()
    try:
        for name in PRELOADED:
            importlib.import_module(name)
        import polyfed.api
        import polyfed.experiment
        import polyfed.federation.simulation  # noqa: F401
        from polyfed.engines import fork_server, worker  # noqa: F401

        main(socket.socket(fileno=descriptors[0]), descriptors[1])
    finally:
        if os.getpid() == main_process:
            for file in files:
                Path(file).unlink(missing_ok=True)
