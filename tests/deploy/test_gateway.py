"""The gateway forwards the requests of sites unchanged, and nothing else reaches the SuperLink behind it."""

from __future__ import annotations

import base64
import datetime
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.deploy.polyfed_processes import wait_until

from polyfed.deploy import gateway as gateway_module
from polyfed.deploy import keys, site_traffic
from polyfed.deploy.certificates import CertificateFolder, create_authority
from polyfed.deploy.flower_protocol import SITE_PATHS
from polyfed.deploy.gateway import Gateway
from polyfed.deploy.join_errors import tls_context
from polyfed.deploy.request_filter import AdmissionRules, RefusedError, Scope
from polyfed.deploy.site_registry import SiteRegistry
from polyfed.errors import InputError

PROTOBUF = "application/protobuf"


@dataclass
class Upstream:
    """A server in place of the SuperLink. It answers every request and records it."""

    address: str = ""
    paths: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    ports: list[int] = field(default_factory=list)  # of the gateway's connections, one for every request
    closes: bool = False  # whether it closes connections after an answer, without saying so
    closed: int = 0  # connections that have ended
    first_piece: threading.Event = field(default_factory=threading.Event)
    reply: bytes = b"fine"
    status: int = 200


@contextmanager
def run_upstream(upstream: Upstream) -> Iterator[None]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            upstream.paths.append(self.path)
            upstream.ports.append(self.client_address[1])
            upstream.headers.append({name.lower(): value for name, value in self.headers.items()})
            left, pieces = int(self.headers["content-length"]), []
            while left:
                piece = self.rfile.read1(min(left, 1 << 16))
                if not piece:  # the gateway has closed the connection
                    self.close_connection = True
                    return
                pieces.append(piece)
                left -= len(piece)
                upstream.first_piece.set()
            upstream.bodies.append(b"".join(pieces))
            self.send_response(upstream.status)
            self.send_header("content-type", PROTOBUF)
            self.send_header("content-length", str(len(upstream.reply)))
            self.end_headers()
            self.wfile.write(upstream.reply)
            self.close_connection = upstream.closes

        do_GET = do_PUT = do_POST  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def shutdown_request(self, request: Any) -> None:
            super().shutdown_request(request)
            upstream.closed += 1

    server = Server(("127.0.0.1", 0), Handler)
    upstream.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def signed_headers(private: Path, seconds_ago: float = 0.0) -> dict[str, str]:
    """Return the headers with which Flower authenticates a request of a site."""
    key = serialization.load_ssh_private_key(private.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    time = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=seconds_ago)
    signature = key.sign(time.isoformat().encode(), ec.ECDSA(hashes.SHA256()))
    pem = keys.public_key_of(private).pem
    return {
        "flwr-public-key": base64.b64encode(pem).decode(),
        "flwr-timestamp": time.isoformat(),
        "flwr-signature": base64.b64encode(signature).decode(),
    }


def header_lines(headers: dict[str, str]) -> bytes:
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode()


@dataclass
class Setup:
    """A gateway with TLS, a registry with one site, and the gateway's notices."""

    gateway: Gateway
    upstream: Upstream
    registry: SiteRegistry
    certificates: CertificateFolder
    key: keys.PublicKey
    private: Path
    notices: list[str]

    @property
    def headers(self) -> dict[str, str]:
        return {"content-type": PROTOBUF, **signed_headers(self.private)}

    def url(self, path: str) -> str:
        return f"https://127.0.0.1:{self.gateway.port}{path}"

    def post(self, path: str, content: bytes = b"", **headers: str) -> httpx.Response:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        with httpx.Client(verify=tls_context(self.certificates.authority), trust_env=False) as client:
            return client.post(self.url(path), content=content, headers={**self.headers, **names})

    def connect(self) -> ssl.SSLSocket:
        plain = socket.create_connection(("127.0.0.1", self.gateway.port), timeout=200)
        return tls_context(self.certificates.authority).wrap_socket(plain, server_hostname="127.0.0.1")

    def raw(self, request: bytes) -> bytes:
        """Send bytes unchanged. Return all bytes of the answer."""
        with self.connect() as line:
            line.sendall(request)
            answer = b""
            while piece := line.recv(1 << 16):
                answer += piece
        return answer


@contextmanager
def open_gateway(folder: Path) -> Iterator[Setup]:
    upstream, notices = Upstream(), list[str]()
    with run_upstream(upstream):
        certificates = create_authority(folder, [])
        registry = SiteRegistry(folder)
        files = keys.create_site_key(folder, "north")
        key = keys.read_public_key(files.public)
        registry.admit("north", key)
        gateway = Gateway(
            "127.0.0.1",
            0,
            upstream.address,
            certificate=certificates.server,
            key=certificates.server_key,
            authority=None,
            status_of_key=registry.status,
            notify=notices.append,
        )
        gateway.start()
        try:
            yield Setup(gateway, upstream, registry, certificates, key, files.private, notices)
        finally:
            gateway.stop()


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[Setup]:
    with open_gateway(tmp_path) as setup:
        yield setup


def test_requests_and_answers_are_forwarded_unchanged(setup: Setup) -> None:
    content = bytes(range(256)) * (20 << 12)  # 20 MiB
    setup.upstream.reply = content[::-1]
    signed = setup.headers
    answer = setup.post("/v1/fleet/push-object", content, **signed)
    assert answer.status_code == 200 and answer.content == content[::-1]
    assert answer.headers["content-type"] == PROTOBUF
    assert setup.upstream.bodies == [content]
    assert {name: setup.upstream.headers[0][name] for name in signed} == signed
    assert (setup.gateway.counts.from_sites, setup.gateway.counts.to_sites) == (len(content), len(content))
    assert setup.gateway.counts.requests == {"push-object": 1}


@pytest.mark.parametrize("path", sorted(SITE_PATHS))
def test_every_allowed_path(setup: Setup, path: bytes) -> None:
    assert setup.post(path.decode(), b"x").content == b"fine"
    assert setup.upstream.paths == [path.decode()]


def test_connections_to_the_superlink_are_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_module, "KEEP_SECONDS", 60.0)
    with open_gateway(tmp_path) as setup:
        upstream = setup.upstream
        for _ in range(2):
            setup.post("/v1/fleet/pull-messages")
        assert len(set(upstream.ports)) == 1
        upstream.closes = True  # as a SuperLink that ends: no request is lost on a closed connection
        for _ in range(2):
            assert setup.post("/v1/fleet/pull-messages").content == upstream.reply
            wait_until(lambda: upstream.closed == len(set(upstream.ports)), "the end of the connection")
        assert len(upstream.ports) == 4 and len(set(upstream.ports)) == 2


def test_idle_connections_are_not_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_module, "KEEP_SECONDS", 0.01)
    with open_gateway(tmp_path) as setup:
        for _ in range(2):
            setup.post("/v1/fleet/pull-messages")
            time.sleep(0.05)
        assert len(set(setup.upstream.ports)) == 2


def test_bodies_are_streamed(setup: Setup) -> None:
    """The first half of a request reaches the other side before the second half is sent."""
    half = b"x" * (1 << 20)
    head = f"POST /v1/fleet/push-object HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {2 * len(half)}\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in setup.headers.items()) + "Connection: close\r\n\r\n"
    with setup.connect() as line:
        line.sendall(head.encode() + half)
        assert setup.upstream.first_piece.wait(20)
        line.sendall(half)
        assert line.recv(1 << 16).startswith(b"HTTP/1.1 200")
    assert setup.upstream.bodies == [2 * half]


HEAD = b"\r\nHost: 127.0.0.1\r\nContent-Type: application/protobuf\r\nContent-Length: 0\r\nConnection: close\r\n"
FORBIDDEN = [
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


def test_forbidden_requests_are_not_forwarded(setup: Setup) -> None:
    key = header_lines(signed_headers(setup.private)) + b"\r\n"
    for line in FORBIDDEN:
        status = setup.raw(line + HEAD + key).split(b"\r\n", 1)[0]
        assert status in (b"HTTP/1.1 403 Forbidden", b"HTTP/1.1 400 Bad Request"), (line, status)
    assert setup.upstream.paths == []
    assert setup.raw(b"POST /v1/fleet/pull-messages HTTP/1.1" + HEAD + key).startswith(b"HTTP/1.1 200")


def test_smuggled_requests_are_not_forwarded(setup: Setup) -> None:
    key = header_lines(signed_headers(setup.private))
    line = b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/protobuf\r\n" + key
    hidden = b"POST /v1/control/start-run HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n"
    chunked = b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n0\r\n\r\n" % (
        len(hidden) + 5
    )
    twice = b"Content-Length: 0\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(hidden)
    only_chunked = b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n0\r\n\r\n"
    upgrade = b"Content-Length: 0\r\nUpgrade: websocket\r\nConnection: upgrade, close\r\n\r\n"
    two_keys = b"Content-Length: 0\r\nConnection: close\r\n" + key.partition(b"\n")[0] + b"\n\r\n"
    for rest in (chunked + hidden, twice + hidden, only_chunked, upgrade, two_keys):
        status = setup.raw(line + rest).split(b"\r\n", 1)[0]
        assert status[9:12] in (b"400", b"403", b"411"), (rest, status)
    assert "/v1/control/start-run" not in setup.upstream.paths
    # a second request on the same connection is checked like the first
    answers = setup.raw(
        line + b"Content-Length: 0\r\n\r\n" + hidden.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    )
    assert answers.count(b"HTTP/1.1 200 OK") == 1 and answers.count(b"HTTP/1.1 403 Forbidden") == 1
    assert "/v1/control/start-run" not in setup.upstream.paths


def test_other_hosts_and_content_types_are_refused(setup: Setup) -> None:
    path = "/v1/fleet/pull-messages"
    assert (
        setup.post(path, host="evil.example").json()["detail"] == "'evil.example' is not a name of this coordinator"
    )
    assert setup.post(path, host="localhost:1").status_code == 200
    assert setup.post(path, content_type="application/json").status_code == 403
    assert len(setup.upstream.paths) == 1


def test_large_requests_are_refused_before_they_are_read(setup: Setup) -> None:
    request = f"POST /v1/fleet/push-object HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {(64 << 20) + 1}\r\n"
    request += "".join(f"{name}: {value}\r\n" for name, value in setup.headers.items()) + "Connection: close\r\n\r\n"
    answer = setup.raw(request.encode())
    assert answer.startswith(b"HTTP/1.1 413") and b"is longer than the 67108864 allowed" in answer
    assert setup.upstream.paths == []


PATHS = st.one_of(
    st.binary(max_size=60),
    st.lists(
        st.sampled_from([b"/", b"v1", b"fleet", b"control", b"..", b"%2e", b"%2f", b"pull-messages", b"\\", b";"]),
        max_size=9,
    ).map(b"".join),
)


@settings(max_examples=200, deadline=None)
@given(path=PATHS)
def test_only_listed_paths_are_admitted(path: bytes) -> None:
    headers = [(b"content-type", PROTOBUF.encode()), (b"content-length", b"0")]
    scope: Scope = {"raw_path": path, "method": "POST", "query_string": b"", "headers": headers}
    rules = AdmissionRules(status_of_key=lambda key: ("admitted", "north"))
    reason = "is not signed" if path in SITE_PATHS else "is not open to the outside"
    with pytest.raises(RefusedError, match=reason) as refused:
        rules.check(scope)
    assert str(refused.value).isprintable()


# keys


UNSIGNED: list[dict[str, str]] = [
    {"flwr-signature": ""},
    {"flwr-signature": base64.b64encode(b"x" * 100).decode()},
    {"flwr-signature": "%%%"},
    {"flwr-timestamp": ""},
    {"flwr-timestamp": "2030-01-01"},
    {"flwr-timestamp": "2030-01-01T00:00:00+00:00"},
]


def test_unsigned_bodies_are_not_forwarded(setup: Setup, tmp_path: Path) -> None:
    """A public key is no secret. Sixteen bodies of 60 MB without a signature must not reach the SuperLink."""
    stranger = keys.create_site_key(tmp_path, "stranger").private
    own_key = {"flwr-public-key": setup.headers["flwr-public-key"]}
    wrong = [{**setup.headers, **changed} for changed in UNSIGNED]
    wrong += [{**setup.headers, **signed_headers(stranger), **own_key}]  # signed with another key
    wrong += [{**setup.headers, **signed_headers(setup.private, seconds)} for seconds in (-60, 400)]
    wrong += [{"content-type": PROTOBUF, **own_key}] * 16
    for headers in wrong:
        head = b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 60000000\r\n"
        with setup.connect() as line:
            line.sendall(head + header_lines(headers) + b"\r\n" + bytes(1 << 16))
            assert line.recv(1 << 16).startswith(b"HTTP/1.1 401")
    assert setup.upstream.paths == [] and setup.gateway.counts.from_sites == 0


def test_bodies_in_flight_are_bounded_by_site(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that does not fit beside the first one waits, and is refused if that takes too long."""
    monkeypatch.setattr(site_traffic, "MAX_IN_FLIGHT", 100)
    monkeypatch.setattr(site_traffic, "WAIT_SECONDS", 0.2)
    head = b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 60\r\n"
    with setup.connect() as first:
        first.sendall(head + header_lines(setup.headers) + b"\r\n" + b"x" * 30)
        assert setup.upstream.first_piece.wait(20)
        refused = setup.post("/v1/fleet/push-object", b"y" * 60)
        assert refused.status_code == 503
        assert refused.json()["detail"] == "this site has too many requests in flight; try again"
        assert setup.post("/v1/fleet/push-object", b"z" * 40).status_code == 200
        first.sendall(b"x" * 30)
        assert first.recv(1 << 16).startswith(b"HTTP/1.1 200")
    assert setup.post("/v1/fleet/push-object", b"y" * 200).status_code == 200  # alone, any allowed size fits
    assert setup.upstream.bodies == [b"z" * 40, b"x" * 60, b"y" * 200]


def test_silent_sites_are_noticed(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_traffic, "SILENT_SECONDS", 0.5)
    assert setup.post("/v1/fleet/activate-node").status_code == 200
    assert setup.gateway.traffic.silent() == frozenset()  # it has not asked for messages yet
    assert setup.post("/v1/fleet/pull-messages").status_code == 200
    wait_until(lambda: setup.gateway.traffic.silent() == {setup.key.pem}, "the loss of the site")
    assert setup.post("/v1/fleet/activate-node").status_code == 200
    assert setup.gateway.traffic.silent() == {setup.key.pem}
    assert setup.post("/v1/fleet/pull-messages").status_code == 200
    assert setup.gateway.traffic.silent() == frozenset()


def test_every_connection_of_a_site_is_a_new_session(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    traffic, sessions = setup.gateway.traffic, []
    for status in (200, 200, 400):  # the last one is not activated
        setup.upstream.status = status
        assert setup.post("/v1/fleet/activate-node").status_code == status
        sessions.append(traffic.session(setup.key.pem))
    assert 0 < sessions[0] < sessions[1] == sessions[2]
    setup.upstream.status = 200
    monkeypatch.setattr(site_traffic, "SILENT_SECONDS", 0.2)
    monkeypatch.setattr(site_traffic, "FORGOTTEN_SECONDS", 0.5)
    assert setup.post("/v1/fleet/pull-messages").status_code == 200
    wait_until(lambda: traffic.session(setup.key.pem) == 0, "the end of its entry")
    assert setup.post("/v1/fleet/activate-node").status_code == 200
    assert traffic.session(setup.key.pem) > sessions[1]  # a number is never used again


def test_sites_with_large_messages_get_more_time(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """A SuperNode that hashes a large message sends no requests meanwhile."""
    monkeypatch.setattr(site_traffic, "SILENT_SECONDS", 0.2)
    monkeypatch.setattr(site_traffic, "BYTES_PER_SECOND", 10)
    setup.upstream.reply = b"x" * 10_000  # takes 1,000 seconds
    assert setup.post("/v1/fleet/pull-object").status_code == 200
    setup.upstream.reply = b""
    assert setup.post("/v1/fleet/pull-messages").status_code == 200
    ticks = setup.gateway._app.traffic._ticks
    wait_until(lambda: ticks[setup.key.pem] >= site_traffic.TICKS, "a silence that is too long for others")
    assert setup.gateway.traffic.silent() == frozenset()
    monkeypatch.setattr(site_traffic, "BYTES_PER_SECOND", 1_000_000)
    wait_until(lambda: setup.gateway.traffic.silent() == {setup.key.pem}, "the loss of the site")


def test_sites_that_were_lost_long_ago_are_forgotten(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_traffic, "SILENT_SECONDS", 0.2)
    monkeypatch.setattr(site_traffic, "FORGOTTEN_SECONDS", 0.5)
    assert setup.post("/v1/fleet/pull-messages").status_code == 200
    wait_until(lambda: setup.gateway.traffic.silent() == {setup.key.pem}, "the loss of the site")
    wait_until(lambda: setup.gateway.traffic.silent() == frozenset(), "the end of its entry")


def test_keys_that_are_not_admitted(setup: Setup, tmp_path: Path) -> None:
    stranger = keys.read_public_key(keys.create_site_key(tmp_path, "stranger").public)
    other = base64.b64encode(stranger.pem).decode()  # the signature is not looked at if the key is not admitted
    for wrong in (other, "", "%%%"):
        answer = setup.post("/v1/fleet/pull-messages", flwr_public_key=wrong)
        assert answer.status_code == 401 and "is not known to the coordinator" in answer.json()["detail"]
    assert setup.post("/v1/fleet/activate-node", flwr_public_key=other).status_code == 400
    assert setup.post("/v1/fleet/pull-messages").status_code == 200
    setup.registry.revoke("north")
    answer = setup.post("/v1/fleet/pull-messages")
    assert answer.status_code == 401
    assert answer.json()["detail"] == "the key of site 'north' has been revoked by the coordinator"
    assert len(setup.upstream.paths) == 1
    assert setup.gateway.counts.refused == 5


def test_a_site_can_ask_for_its_status(setup: Setup) -> None:
    with httpx.Client(verify=tls_context(setup.certificates.authority), trust_env=False) as client:
        answer = client.get(setup.url("/v1/polyfed/standing"), headers=setup.headers).json()
        assert (answer["standing"], answer["name"]) == ("admitted", "north")
        assert client.get(setup.url("/v1/polyfed/standing")).json()["standing"] == "unknown"
    assert setup.upstream.paths == []


def test_equal_notices_are_not_repeated(setup: Setup) -> None:
    for _ in range(5):
        setup.post("/v1/control/start-run")
    setup.post("/v1/control/stop-run")
    reason = "is not open to the outside; only the fleet interface is"
    assert setup.notices == [
        f"refused a request from 127.0.0.1: '/v1/control/{command}' {reason}" for command in ("start-run", "stop-run")
    ]


# errors


def test_a_superlink_that_does_not_run(tmp_path: Path) -> None:
    with open_gateway(tmp_path) as setup:
        pass
    gateway = Gateway(
        "127.0.0.1",
        0,
        setup.upstream.address,
        certificate=None,
        key=None,
        authority=None,
        status_of_key=None,
        notify=setup.notices.append,
    )
    gateway.start()
    try:
        url = f"http://127.0.0.1:{gateway.port}/v1/fleet/pull-messages"
        answer = httpx.post(url, headers={"content-type": PROTOBUF}, trust_env=False)
        assert answer.status_code == 502 and answer.json()["detail"] == "the coordinator is not ready; try again"
    finally:
        gateway.stop()


def test_without_keys_sites_may_register_themselves_and_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_traffic, "SILENT_SECONDS", 0.5)
    upstream = Upstream()
    with run_upstream(upstream):
        gateway = Gateway(
            "127.0.0.1",
            0,
            upstream.address,
            certificate=None,
            key=None,
            authority=None,
            status_of_key=None,
            notify=lambda _: None,
        )
        gateway.start()
        try:
            url = f"http://127.0.0.1:{gateway.port}/v1"
            post = {"headers": {"content-type": PROTOBUF}, "trust_env": False}
            assert httpx.post(f"{url}/fleet/register-node", **post).status_code == 200  # type: ignore[arg-type]
            assert httpx.post(f"{url}/control/start-run", **post).status_code == 403  # type: ignore[arg-type]
            assert httpx.get(f"{url}/polyfed/standing", trust_env=False).status_code == 403
            assert upstream.paths == ["/v1/fleet/register-node"]
            # SuperNodes without keys make one at their start, so that the loss of one is noticed too
            for key in (base64.b64encode(b"made at the start"), b"no base64: %", b""):
                headers = {"content-type": PROTOBUF, "flwr-public-key": key.decode()}
                answer = httpx.post(f"{url}/fleet/pull-messages", headers=headers, trust_env=False)
                assert answer.status_code == 200
            wait_until(lambda: gateway.traffic.silent() == {b"made at the start"}, "the loss of the site")
        finally:
            gateway.stop()


def test_too_many_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_module, "MAX_CONNECTIONS", 2)
    with open_gateway(tmp_path) as setup, setup.connect(), setup.connect():
        assert setup.post("/v1/fleet/pull-messages").status_code == 503


def test_a_port_in_use(setup: Setup) -> None:
    with pytest.raises(InputError, match=f"cannot listen on 127.0.0.1:{setup.gateway.port}"):
        Gateway(
            "127.0.0.1",
            setup.gateway.port,
            setup.upstream.address,
            certificate=None,
            key=None,
            authority=None,
            status_of_key=None,
            notify=lambda _: None,
        )
