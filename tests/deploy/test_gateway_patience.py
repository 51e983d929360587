"""Lines that hold a place at the door and ask for nothing are closed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.deploy.test_gateway import opened

from polyfed.deploy import gateway

REFUSED = b"GET /elsewhere HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"


@pytest.mark.parametrize("begins", [b"", b"POST /v1/fleet/pull", REFUSED + b"POST /v1"])
def test_lines_without_a_whole_request_are_closed(
    begins: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silent from the start, in the middle of a head, and in the head of a request after one that was answered."""
    monkeypatch.setattr(gateway, "HEAD_SECONDS", 0.3)
    with opened(tmp_path) as door, door.connect() as line:
        if begins.startswith(REFUSED):
            line.sendall(REFUSED)
            assert line.recv(1 << 16).startswith(b"HTTP/1.1 403")
            begins = begins.removeprefix(REFUSED)
        line.sendall(begins)
        while line.recv(1 << 16):
            pass
    assert door.behind.paths == []


def test_a_body_that_stalls_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "BODY_SECONDS", 0.3)
    with opened(tmp_path) as door, door.connect() as line:
        head = {**door.headers, "host": "127.0.0.1", "content-length": "100"}
        lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
        line.sendall(f"POST /v1/fleet/push-object HTTP/1.1\r\n{lines}\r\nabc".encode())
        assert line.recv(1 << 16).startswith(b"HTTP/1.1 502")
    assert door.behind.bodies == []
