"""Workers and processes of sweeps ask for memory with large pages, unless the user has set this."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from polyfed.cli.sweep_workers import start_process
from polyfed.engines.fork_server import ForkServer
from polyfed.engines.spawned_workers import SpawnedWorkers
from polyfed.machine import with_large_pages

ASKED = "glibc.malloc.hugetlb=1"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ASKED),
        ({"GLIBC_TUNABLES": ""}, ASKED),
        ({"GLIBC_TUNABLES": "glibc.malloc.check=1"}, f"glibc.malloc.check=1:{ASKED}"),
        ({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}, "glibc.malloc.hugetlb=0"),
    ],
)
def test_setting_is_added_to_the_users_own(
    given: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    assert with_large_pages({"HOME": "here", **given}) == {"HOME": "here", "GLIBC_TUNABLES": expected}


def test_other_systems_have_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert with_large_pages({"HOME": "here"}) == {"HOME": "here"}


@contextlib.contextmanager
def _worker(start: type[ForkServer] | type[SpawnedWorkers]) -> Iterator[int]:
    """Start a worker; yield its process id."""
    workers = start()
    pid, connection = workers.fork()
    try:
        yield pid
    finally:
        connection.close()
        workers.close()


@contextlib.contextmanager
def _sweep_process() -> Iterator[int]:
    """Start a process of a sweep; yield its process id."""
    with start_process() as process:
        try:
            yield process.pid
        finally:
            process.kill()


def _environment(pid: int) -> list[bytes]:
    """Return the environment with which a process started. It is empty while the system replaces the program."""
    end = time.monotonic() + 30
    while not (text := Path(f"/proc/{pid}/environ").read_bytes()) and time.monotonic() < end:
        time.sleep(0.01)
    return text.split(b"\0")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("start", [partial(_worker, ForkServer), partial(_worker, SpawnedWorkers), _sweep_process])
def test_processes_start_with_the_setting(
    start: Callable[[], contextlib.AbstractContextManager[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    with start() as pid:
        environment = _environment(pid)
    assert f"GLIBC_TUNABLES={ASKED}".encode() in environment
