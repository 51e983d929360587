"""Workers ask for memory with large pages, unless the user has set this."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("start", [ForkServer, SpawnedWorkers])
def test_workers_start_with_the_setting(
    start: type[ForkServer] | type[SpawnedWorkers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    with _worker(start) as pid:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    assert f"GLIBC_TUNABLES={ASKED}".encode() in environment
