"""The gateway closes connections that do not complete a request in time."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.deploy.test_gateway import open_gateway

from polyfed.deploy import gateway, header_timeout

REFUSED = b"GET /elsewhere HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"


@pytest.mark.parametrize("start", [b"", b"POST /v1/fleet/pull", REFUSED + b"POST /v1"])
def test_connections_without_a_complete_header_are_closed(
    start: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silent from the start, within a header, and within the header of a second request."""
    monkeypatch.setattr(header_timeout, "HEADER_SECONDS", 2.0)  # a first request arrives in time on a busy machine
    with open_gateway(tmp_path) as setup, setup.connect() as connection:
        if start.startswith(REFUSED):
            connection.sendall(REFUSED)
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 403")
            start = start.removeprefix(REFUSED)
        connection.sendall(start)
        while connection.recv(1 << 16):
            pass
    assert setup.upstream.paths == []


@pytest.mark.parametrize("arrived", [3, 2_000_000])
def test_a_stalled_body_ends_the_request(arrived: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that arrived before a body stalls give it no more time."""
    monkeypatch.setattr(gateway, "BODY_SECONDS", 0.3)
    with open_gateway(tmp_path) as setup, setup.connect() as connection:
        headers = {**setup.headers, "host": "127.0.0.1", "content-length": "3000000"}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        connection.sendall(f"POST /v1/fleet/push-object HTTP/1.1\r\n{lines}\r\n".encode() + bytes(arrived))
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 502")
    assert setup.upstream.bodies == []
