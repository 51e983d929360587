"""Runs on Ray: bit-identical to the serial engine, robust to deaths, on loopback only, and without leftovers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from tests import small, warm_processes

from polyfed import api
from polyfed.errors import InputError
from polyfed.runs.records import RoundRecord

SETTING: dict[str, Any] = {
    "rounds": 2,
    "clients": 4,
    "data": {"dataset": "digits", "limit": 240, "partition": {"scheme": "dirichlet", "alpha": 0.5}},
    "checkpoint": {"seconds": 0},
}
DFFKE: dict[str, Any] = {"name": "dffke", **small.DFFKE}
FEDL2G: dict[str, Any] = {"name": "fedl2g", "warmup": 2}
SCAFFOLD: dict[str, Any] = {
    "method": "scaffold",
    "models": {"group": "tiny-resnets"},
    "splitting": "stage",
    "server_filter": "inco",
}


def run(out: Path, engine: dict[str, Any], **more: Any) -> dict[str, Any]:
    return api.run("quickstart", out=out, engine=engine, **{**SETTING, **more})


def same(one: dict[str, Any], other: dict[str, Any]) -> None:
    for what in ("state_hash", "accuracy", "loss", "bytes", "failures"):
        assert one[what] == other[what]
    assert one["failures"] == []


@pytest.mark.parametrize(
    ("method", "workers"),
    [
        pytest.param("fedproto", 2, id="fedproto"),
        pytest.param(DFFKE, 1, id="dffke"),  # several calls in a round
        pytest.param(FEDL2G, 1, id="fedl2g", marks=pytest.mark.all_methods),  # as well
    ],
)
def test_ray_equals_serial(method: str | dict[str, Any], workers: int, tmp_path: Path, cluster: Any) -> None:
    # with room for one live client, others' states travel; with one worker they are let go for lack of room
    ray = run(tmp_path / "ray", {"name": "ray", "workers": workers, "memory_budget": 1}, method=method)
    same(ray, run(tmp_path / "serial", {"name": "serial"}, method=method))


class Kills:
    """An observer that kills something in the middle of a round, after its first client's state is stored."""

    def __init__(self, states: Path, what: dict[int, Callable[[], object]]) -> None:
        self._states = states
        self._what = what  # by round
        self._threads: list[threading.Thread] = []
        self.done: list[int] = []

    def started(self, config: object, folder: Path, done: int) -> None: ...

    def note(self, sentence: str) -> None: ...

    def round_done(self, record: RoundRecord) -> None:
        coming = record.round + 1
        if coming in self._what:
            thread = threading.Thread(target=self._kill, args=[coming, set(self._states.iterdir())])
            self._threads.append(thread)
            thread.start()

    def _kill(self, number: int, before: set[Path]) -> None:
        while not set(self._states.iterdir()) - before:
            time.sleep(0.002)
        self._what[number]()
        self.done.append(number)

    def join(self) -> None:
        for thread in self._threads:
            thread.join()


def test_an_actor_and_a_node_die_in_the_middle_of_rounds(tmp_path: Path, cluster: Any) -> None:
    """Their tasks run elsewhere from the states on the driver's disk, with bit-identical results."""
    import ray

    node = cluster.add_node(num_cpus=1, object_store_memory=80 << 20)
    setting = {**SCAFFOLD, "rounds": 3, "clients": 5}

    def kill_actor() -> None:
        actors = [pid for pid, command in descendants(os.getpid()).items() if command.startswith("ray::Actor")]
        os.kill(actors[0], signal.SIGKILL)

    states = tmp_path / "ray" / "checkpoint" / "clients"
    killing = Kills(states, {2: kill_actor, 3: lambda: cluster.remove_node(node, allow_graceful=False)})
    try:
        result = api.run(
            "quickstart",
            out=tmp_path / "ray",
            engine={"name": "ray", "workers": 3},
            observers=[killing],
            **{**SETTING, **setting},
        )
    finally:
        killing.join()
    assert killing.done == [2, 3]
    assert [entry["Alive"] for entry in ray.nodes()].count(True) == 1
    same(result, run(tmp_path / "serial", {"name": "serial"}, **setting))


def descendants(parent: int) -> dict[int, str]:
    """Return the commands of all descendants of a process."""
    found: dict[int, str] = {}
    try:
        for task in Path(f"/proc/{parent}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found[child] = command_of(child)
                found |= descendants(child)
    except OSError:  # it is gone
        pass
    return found


def listening(pids: Iterable[int]) -> set[str]:
    """Return the local addresses on which processes listen."""
    sockets = set()
    for entry in (entry for pid in pids for entry in Path("/proc").glob(f"{pid}/fd/*")):
        with contextlib.suppress(OSError):
            sockets.add(str(entry.readlink()))
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    return {line[1].partition(":")[0] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in sockets}


def command_of(pid: int) -> str:
    """Return an empty string if the process does not exist or is a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def test_a_local_ray_listens_on_loopback_leaves_no_process_and_resumes(
    tmp_path: Path, cluster: Any, ray_home: Path
) -> None:
    out, setting = tmp_path / "stopped", {**SETTING, "method": "lg-fedavg", "rounds": 20, "seed": 1}
    (tmp_path / "config.yaml").write_text(json.dumps({**setting, "engine": {"name": "ray", "workers": 1}}))
    own = ray_home / "own"
    own.mkdir()
    command = ["-m", "polyfed", "run", str(tmp_path / "config.yaml"), "--out", str(out)]
    environment = {**os.environ, "RAY_TMPDIR": str(own)}
    with warm_processes.Process(*command, env=environment, stderr=warm_processes.PIPE) as process:
        while '"round"' not in _text(out / "events.jsonl") and process.poll() is None:
            time.sleep(0.1)
        started = descendants(process.pid)
        places = listening([process.pid, *started])
        # actors write their name over their environment
        services = [pid for pid, name in started.items() if "ray" in name and not name.startswith("ray::")]
        reports = {pid: sends_reports(pid) for pid in services}
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        message = process.stderr.read()
    assert process.returncode == 130, message
    assert "polyfed resume" in message
    assert "ray" not in message.replace(str(tmp_path), "").lower()  # it says nothing of its own
    assert places and places <= {"0100007F", "0000000000000000FFFF00000100007F"}  # 127.0.0.1, both ways
    assert reports and not any(reports.values())
    assert any("raylet" in command for command in started.values())
    assert any(command.startswith("ray::Actor") for command in started.values())
    until = time.monotonic() + 120  # they end soon after the main process, if the machine is not busy
    while any(command_of(pid) for pid in started) and time.monotonic() < until:
        time.sleep(0.1)
    assert [command_of(pid) for pid in started if command_of(pid)] == []
    assert 1 <= _text(out / "events.jsonl").count('"event": "round"') < 20
    same(api.resume(out), run(tmp_path / "serial", {"name": "serial"}, **setting))


def sends_reports(pid: int) -> bool:
    """Return whether a process of Ray may send usage reports, from its environment. False if it has ended."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return environment != [b""] and b"RAY_USAGE_STATS_ENABLED=0" not in environment


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


WITHOUT = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "ray":
            raise ModuleNotFoundError(f"No module named '{name}'")

sys.meta_path.insert(0, Refuse())
from polyfed.cli.app import main
raise SystemExit(main())
"""


def test_without_ray_the_extra_is_named(tmp_path: Path) -> None:
    arguments = ["run", "quickstart", "engine.name=ray", "--out", str(tmp_path / "run")]
    ended = warm_processes.run("-c", WITHOUT, *arguments)
    assert ended.returncode == InputError.exit_code
    assert "pip install 'polyfed[ray]'" in ended.stderr and "Traceback" not in ended.stderr
    assert not (tmp_path / "run").exists()
