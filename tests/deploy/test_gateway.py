"""The door of a coordinator: what sites need passes whole, and nothing else reaches the SuperLink behind it."""

from __future__ import annotations

import base64
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyfed.deploy import gateway, keys
from polyfed.deploy.allowlist import RefusedError, Rules, Scope
from polyfed.deploy.flower_protocol import SITE_PATHS
from polyfed.deploy.gateway import Gateway
from polyfed.deploy.join_errors import trusting
from polyfed.deploy.site_registry import Registry
from polyfed.errors import InputError

PROTOBUF = "application/protobuf"


@dataclass
class Behind:
    """A server in the place of the SuperLink: it answers everything, and remembers what it was asked."""

    address: str = ""
    paths: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    first_piece: threading.Event = field(default_factory=threading.Event)
    reply: bytes = b"fine"


@contextmanager
def answering(behind: Behind) -> Iterator[None]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            behind.paths.append(self.path)
            behind.headers.append({name.lower(): value for name, value in self.headers.items()})
            left, pieces = int(self.headers["content-length"]), []
            while left:
                pieces.append(self.rfile.read1(min(left, 1 << 16)))
                left -= len(pieces[-1])
                behind.first_piece.set()
            behind.bodies.append(b"".join(pieces))
            self.send_response(200)
            self.send_header("content-type", PROTOBUF)
            self.send_header("content-length", str(len(behind.reply)))
            self.end_headers()
            self.wfile.write(behind.reply)

        do_GET = do_PUT = do_POST  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    behind.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@dataclass
class Door:
    """A gateway with TLS, a registry with one site in it, and what it said."""

    gate: Gateway
    behind: Behind
    sites: Registry
    authority: keys.Authority
    key: keys.PublicKey
    said: list[str]

    @property
    def headers(self) -> dict[str, str]:
        return {"content-type": PROTOBUF, "flwr-public-key": base64.b64encode(self.key.encoded).decode()}

    def url(self, path: str) -> str:
        return f"https://127.0.0.1:{self.gate.port}{path}"

    def post(self, path: str, content: bytes = b"", **headers: str) -> httpx.Response:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        with httpx.Client(verify=trusting(self.authority.certificate), trust_env=False) as client:
            return client.post(self.url(path), content=content, headers={**self.headers, **names})

    def connect(self) -> ssl.SSLSocket:
        plain = socket.create_connection(("127.0.0.1", self.gate.port), timeout=10)
        return trusting(self.authority.certificate).wrap_socket(plain, server_hostname="127.0.0.1")

    def raw(self, request: bytes) -> bytes:
        """Bytes as they are, and all that comes back."""
        with self.connect() as line:
            line.sendall(request)
            answer = b""
            while piece := line.recv(1 << 16):
                answer += piece
        return answer


@contextmanager
def opened(folder: Path) -> Iterator[Door]:
    behind, said = Behind(), list[str]()
    with answering(behind):
        authority = keys.new_authority(folder, [])
        sites = Registry(folder)
        key = keys.read_public_key(keys.new_node_key(folder, "north").public)
        sites.admit("north", key)
        gate = Gateway(
            "127.0.0.1",
            0,
            behind.address,
            certificate=authority.server_certificate,
            key=authority.server_key,
            authority=None,
            standing=sites.standing,
            say=said.append,
        )
        gate.start()
        try:
            yield Door(gate, behind, sites, authority, key, said)
        finally:
            gate.stop()


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    with opened(tmp_path) as made:
        yield made


def test_what_sites_need_passes_whole(door: Door) -> None:
    content = bytes(range(256)) * (20 << 12)  # 20 MiB
    door.behind.reply = content[::-1]
    answer = door.post("/v1/fleet/push-object", content, flwr_signature="abc")
    assert answer.status_code == 200 and answer.content == content[::-1]
    assert answer.headers["content-type"] == PROTOBUF
    assert door.behind.bodies == [content]
    assert door.behind.headers[0]["flwr-signature"] == "abc"
    assert door.behind.headers[0]["flwr-public-key"] == door.headers["flwr-public-key"]
    assert (door.gate.counts.from_sites, door.gate.counts.to_sites) == (len(content), len(content))
    assert door.gate.counts.requests == {"push-object": 1}


@pytest.mark.parametrize("path", sorted(SITE_PATHS))
def test_every_open_path(door: Door, path: bytes) -> None:
    assert door.post(path.decode(), b"x").content == b"fine"
    assert door.behind.paths == [path.decode()]


def test_nothing_is_gathered_in_memory(door: Door) -> None:
    """The first half of a request is on the other side before the second half is sent."""
    half = b"x" * (1 << 20)
    head = f"POST /v1/fleet/push-object HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {2 * len(half)}\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in door.headers.items()) + "Connection: close\r\n\r\n"
    with door.connect() as line:
        line.sendall(head.encode() + half)
        assert door.behind.first_piece.wait(20)
        line.sendall(half)
        assert line.recv(1 << 16).startswith(b"HTTP/1.1 200")
    assert door.behind.bodies == [2 * half]


HEAD = b"\r\nHost: 127.0.0.1\r\nContent-Type: application/protobuf\r\nContent-Length: 0\r\nConnection: close\r\n"
NASTY = [
    b"POST /v1/control/start-run HTTP/1.1",
    b"POST /v1/control/register-node HTTP/1.1",
    b"POST /v1/runtime/acquire-task HTTP/1.1",
    b"POST /v1/fleet/register-node HTTP/1.1",
    b"POST /v1/fleet/unregister-node HTTP/1.1",
    b"POST /v1/fleet/../control/start-run HTTP/1.1",
    b"POST /v1/fleet/%2e%2e/control/start-run HTTP/1.1",
    b"POST /v1/fleet%2f..%2fcontrol/start-run HTTP/1.1",
    b"POST /v1/fleet/..;/control/start-run HTTP/1.1",
    b"POST /v1/fleet/pull-messages/../../control/start-run HTTP/1.1",
    b"POST //v1/fleet/pull-messages HTTP/1.1",
    b"POST /v1//fleet/pull-messages HTTP/1.1",
    b"POST /v1/fleet//pull-messages HTTP/1.1",
    b"POST /v1/./fleet/pull-messages HTTP/1.1",
    b"POST /v1/fleet/pull%2Dmessages HTTP/1.1",
    b"POST /v1/fleet/pull-messages/ HTTP/1.1",
    b"POST /V1/Fleet/pull-messages HTTP/1.1",
    b"POST /v1/fleet/pull-messages%00 HTTP/1.1",
    b"POST /v1/fleet/pull-messages?x=/v1/control/start-run HTTP/1.1",
    b"POST /v1/fleet/pull-messages#x HTTP/1.1",
    b"POST /v1/fleet\\..\\control\\start-run HTTP/1.1",
    b"POST http://127.0.0.1/v1/fleet/pull-messages HTTP/1.1",
    b"POST http://127.0.0.1:8000/v1/control/start-run HTTP/1.1",
    b"POST * HTTP/1.1",
    b"GET /v1/fleet/pull-messages HTTP/1.1",
    b"PUT /v1/fleet/pull-messages HTTP/1.1",
    b"OPTIONS * HTTP/1.1",
    b"CONNECT 127.0.0.1:8000 HTTP/1.1",
    b"TRACE /v1/fleet/pull-messages HTTP/1.1",
    b"GET / HTTP/1.1",
    b"GET /docs HTTP/1.1",
    b"GET /openapi.json HTTP/1.1",
    b"GET /health HTTP/1.1",
    b"POST /v1/polyfed/standing HTTP/1.1",
    b"GET /v1/polyfed/standing/../../control HTTP/1.1",
]


def test_tricks_are_refused_and_reach_nobody(door: Door) -> None:
    key = b"flwr-public-key: " + door.headers["flwr-public-key"].encode() + b"\r\n\r\n"
    for line in NASTY:
        status = door.raw(line + HEAD + key).split(b"\r\n", 1)[0]
        assert status in (b"HTTP/1.1 403 Forbidden", b"HTTP/1.1 400 Bad Request"), (line, status)
    assert door.behind.paths == []
    assert door.raw(b"POST /v1/fleet/pull-messages HTTP/1.1" + HEAD + key).startswith(b"HTTP/1.1 200")


def test_smuggled_requests_reach_nobody(door: Door) -> None:
    key = b"flwr-public-key: " + door.headers["flwr-public-key"].encode() + b"\r\n"
    line = b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/protobuf\r\n" + key
    hidden = b"POST /v1/control/start-run HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n"
    chunked = b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n0\r\n\r\n" % (
        len(hidden) + 5
    )
    twice = b"Content-Length: 0\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(hidden)
    only_chunked = b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n0\r\n\r\n"
    upgrade = b"Content-Length: 0\r\nUpgrade: websocket\r\nConnection: upgrade, close\r\n\r\n"
    two_keys = b"Content-Length: 0\r\nConnection: close\r\n" + key + b"\r\n"
    for rest in (chunked + hidden, twice + hidden, only_chunked, upgrade, two_keys):
        status = door.raw(line + rest).split(b"\r\n", 1)[0]
        assert status[9:12] in (b"400", b"403", b"411"), (rest, status)
    assert "/v1/control/start-run" not in door.behind.paths
    # one that follows a good request on the same connection is looked at like any other
    answers = door.raw(
        line + b"Content-Length: 0\r\n\r\n" + hidden.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    )
    assert answers.count(b"HTTP/1.1 200 OK") == 1 and answers.count(b"HTTP/1.1 403 Forbidden") == 1
    assert "/v1/control/start-run" not in door.behind.paths


def test_other_hosts_and_kinds_are_refused(door: Door) -> None:
    path = "/v1/fleet/pull-messages"
    assert door.post(path, host="evil.example").json()["detail"] == "'evil.example' is not a name of this coordinator"
    assert door.post(path, host="localhost:1").status_code == 200
    assert door.post(path, content_type="application/json").status_code == 403
    assert len(door.behind.paths) == 1


def test_long_requests_are_refused_before_they_are_read(door: Door) -> None:
    request = f"POST /v1/fleet/push-object HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {(64 << 20) + 1}\r\n"
    request += "".join(f"{name}: {value}\r\n" for name, value in door.headers.items()) + "Connection: close\r\n\r\n"
    answer = door.raw(request.encode())
    assert answer.startswith(b"HTTP/1.1 413") and b"is longer than the 67108864 allowed" in answer
    assert door.behind.paths == []


PATHS = st.one_of(
    st.binary(max_size=60),
    st.lists(
        st.sampled_from([b"/", b"v1", b"fleet", b"control", b"..", b"%2e", b"%2f", b"pull-messages", b"\\", b";"]),
        max_size=9,
    ).map(b"".join),
)


@settings(max_examples=200, deadline=None)
@given(path=PATHS)
def test_only_the_listed_paths_pass(path: bytes) -> None:
    headers = [(b"content-type", PROTOBUF.encode()), (b"content-length", b"0")]
    scope: Scope = {"raw_path": path, "method": "POST", "query_string": b"", "headers": headers}
    rules = Rules(standing=lambda key: ("admitted", "north"))
    if path in SITE_PATHS:
        rules.check(scope)
    else:
        with pytest.raises(RefusedError, match="is not open to the outside") as refused:
            rules.check(scope)
        assert str(refused.value).isprintable()


# keys


def test_keys_that_are_not_admitted(door: Door, tmp_path: Path) -> None:
    stranger = keys.read_public_key(keys.new_node_key(tmp_path, "stranger").public)
    other = base64.b64encode(stranger.encoded).decode()
    for wrong in (other, "", "%%%"):
        answer = door.post("/v1/fleet/pull-messages", flwr_public_key=wrong)
        assert answer.status_code == 401 and "is not known to the coordinator" in answer.json()["detail"]
    assert door.post("/v1/fleet/activate-node", flwr_public_key=other).status_code == 400
    assert door.post("/v1/fleet/pull-messages").status_code == 200
    door.sites.revoke("north")
    answer = door.post("/v1/fleet/pull-messages")
    assert answer.status_code == 401
    assert answer.json()["detail"] == "the key of site 'north' has been revoked by the coordinator"
    assert len(door.behind.paths) == 1
    assert door.gate.counts.refused == 5


def test_standing_is_told(door: Door) -> None:
    with httpx.Client(verify=trusting(door.authority.certificate), trust_env=False) as client:
        answer = client.get(door.url("/v1/polyfed/standing"), headers=door.headers).json()
        assert (answer["standing"], answer["name"]) == ("admitted", "north")
        assert client.get(door.url("/v1/polyfed/standing")).json()["standing"] == "unknown"
    assert door.behind.paths == []


def test_the_log_is_not_flooded(door: Door) -> None:
    for _ in range(5):
        door.post("/v1/control/start-run")
    door.post("/v1/control/stop-run")
    why = "is not open to the outside; only the fleet interface is"
    assert door.said == [
        f"refused a request from 127.0.0.1: '/v1/control/{what}' {why}" for what in ("start-run", "stop-run")
    ]


# what goes wrong


def test_a_superlink_that_is_away(tmp_path: Path) -> None:
    with opened(tmp_path) as door:
        pass
    gate = Gateway(
        "127.0.0.1",
        0,
        door.behind.address,
        certificate=None,
        key=None,
        authority=None,
        standing=None,
        say=door.said.append,
    )
    gate.start()
    try:
        url = f"http://127.0.0.1:{gate.port}/v1/fleet/pull-messages"
        answer = httpx.post(url, headers={"content-type": PROTOBUF}, trust_env=False)
        assert answer.status_code == 502 and answer.json()["detail"] == "the coordinator is not ready; try again"
    finally:
        gate.stop()


def test_without_keys_sites_register_themselves_and_still_nothing_else(tmp_path: Path) -> None:
    behind = Behind()
    with answering(behind):
        gate = Gateway(
            "127.0.0.1",
            0,
            behind.address,
            certificate=None,
            key=None,
            authority=None,
            standing=None,
            say=lambda _: None,
        )
        gate.start()
        try:
            url = f"http://127.0.0.1:{gate.port}/v1"
            post = {"headers": {"content-type": PROTOBUF}, "trust_env": False}
            assert httpx.post(f"{url}/fleet/register-node", **post).status_code == 200  # type: ignore[arg-type]
            assert httpx.post(f"{url}/control/start-run", **post).status_code == 403  # type: ignore[arg-type]
            assert httpx.get(f"{url}/polyfed/standing", trust_env=False).status_code == 403
        finally:
            gate.stop()
    assert behind.paths == ["/v1/fleet/register-node"]


def test_too_many_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "MOST_CONNECTIONS", 2)
    with opened(tmp_path) as door, door.connect(), door.connect():
        assert door.post("/v1/fleet/pull-messages").status_code == 503


def test_a_port_that_is_taken(door: Door) -> None:
    with pytest.raises(InputError, match=f"127.0.0.1:{door.gate.port} cannot be listened on"):
        Gateway(
            "127.0.0.1",
            door.gate.port,
            door.behind.address,
            certificate=None,
            key=None,
            authority=None,
            standing=None,
            say=lambda _: None,
        )
